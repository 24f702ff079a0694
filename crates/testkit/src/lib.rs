//! omr testkit
