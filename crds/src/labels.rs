//! Keys and values of the labels and annotations that multinet reads and writes.

/// Label of a slice: the name of its MultiNetworkService, in the slice's own namespace. Readers pass
/// over slices without it. As `kubernetes.io/service-name` of EndpointSlice v1.
pub const SERVICE_NAME: &str = "multinetwork.numaproj.io/service-name";

/// Label of a slice: who writes it. A writer leaves slices alone that are another's. As
/// `endpointslice.kubernetes.io/managed-by` of EndpointSlice v1.
pub const MANAGED_BY: &str = "multinetwork.numaproj.io/managed-by";

/// Value of [`MANAGED_BY`] and [`CORE_MANAGED_BY`] on what multinet's controller writes.
pub const MANAGED_BY_CONTROLLER: &str = "multinet-controller";

/// Annotation of a slice: the earliest time of the changes that this version of it tells of, in RFC 3339
/// with fractions of a second. Its distance from the moment of the answer is the delay that users see. As
/// `endpoints.kubernetes.io/last-change-trigger-time` of EndpointSlice v1.
pub const LAST_CHANGE_TRIGGER_TIME: &str = "multinetwork.numaproj.io/last-change-trigger-time";

/// Annotation of a slice: its first addresses and their pods, for people who list slices. The controller writes it; nothing reads
/// it.
pub const ENDPOINTS: &str = "multinetwork.numaproj.io/endpoints";

/// Label of a core EndpointSlice: the name of its core Service. Written on mirrors.
pub const CORE_SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Label of a core EndpointSlice: who writes it. Written on mirrors, with [`MANAGED_BY_CONTROLLER`], so
/// that the controllers of Kubernetes leave them alone.
pub const CORE_MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
