//! The web pages. (Being written.)
