//! Keys and values of the labels and annotations that multinet reads and writes.

/// Label of a slice: the name of its MultiNetworkService, in the slice's namespace. Readers ignore
/// slices without it. Corresponds to `kubernetes.io/service-name` of EndpointSlice v1.
pub const SERVICE_NAME: &str = "multinetwork.numaproj.io/service-name";

/// Label of a slice: the program that writes it. A writer does not touch slices of other writers.
/// Corresponds to `endpointslice.kubernetes.io/managed-by` of EndpointSlice v1.
pub const MANAGED_BY: &str = "multinetwork.numaproj.io/managed-by";

/// Value of [`MANAGED_BY`] and [`CORE_MANAGED_BY`] on slices that multinet's controller writes.
pub const MANAGED_BY_CONTROLLER: &str = "multinet-controller";

/// Annotation of a slice: the time of the earliest change that this version of the slice reflects,
/// in RFC 3339 with fractions of a second. The time from then until DNS answers accordingly is the
/// delay that users see. Corresponds to `endpoints.kubernetes.io/last-change-trigger-time` of
/// EndpointSlice v1.
pub const LAST_CHANGE_TRIGGER_TIME: &str = "multinetwork.numaproj.io/last-change-trigger-time";

/// Annotation of a slice: its first addresses and their pods, for `kubectl get`. The controller
/// writes it, and no program reads it.
pub const ENDPOINTS: &str = "multinetwork.numaproj.io/endpoints";

/// Label of a core EndpointSlice: the name of its core Service. The controller sets it on mirrors.
pub const CORE_SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Label of a core EndpointSlice: the program that writes it. The controller sets it on mirrors to
/// [`MANAGED_BY_CONTROLLER`], so that Kubernetes' own controllers do not touch them.
pub const CORE_MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";

/// Label of Numaflow: the name of the pipeline that an object belongs to. Slices have it from their
/// service. With [`VERTEX_NAME`] it gives a service a second name in DNS.
pub const PIPELINE_NAME: &str = "numaflow.numaproj.io/pipeline-name";

/// Label of Numaflow: the name of the vertex that an object belongs to.
pub const VERTEX_NAME: &str = "numaflow.numaproj.io/vertex-name";
