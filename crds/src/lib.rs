//! API types of `multinetwork.numaproj.io/v1alpha1`.
