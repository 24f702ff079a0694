//! omr kernel
