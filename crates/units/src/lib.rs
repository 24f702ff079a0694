//! omr units
