//! omr policy
