//! What both binaries share.
