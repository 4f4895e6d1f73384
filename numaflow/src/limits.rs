//! All limits of multinet-numaflow and the defaults of its flags, with their units and reasons.
//! Durations state their unit, sizes are in bytes.
//!
//! docs/reference.md lists them; `tests/tools/limits.sh --write` writes that list.

/// Defaults of the command-line flags.
pub(crate) mod flags {
    /// Default of `--listen`: address of the webhook.
    pub(crate) const LISTEN: &str = "[::]:9443";

    /// Default of `--webhook-configuration`: the MutatingWebhookConfiguration of the manifests.
    pub(crate) const WEBHOOK_CONFIGURATION: &str = "multinet-numaflow";

    /// Default of `--vertex-zone`: zone of the vertices' names, as gpu-direct-comm has them.
    pub(crate) const VERTEX_ZONE: &str = "vertexdomain.local";

    /// Default of `--zone`: zone of the services' names.
    pub(crate) const ZONE: &str = "multinet.cluster.local";

    /// Default of `--certificate-lifetime`: validity of a certificate that the program makes.
    pub(crate) const CERTIFICATE_LIFETIME: &str = "2160h";

    /// Default of `--lameduck`: time for which the webhook goes on answering after SIGTERM, until
    /// API servers call the other replica.
    pub(crate) const LAMEDUCK: &str = "5s";
}

/// Contents of annotations. Authors of Pipelines write them, so they are bounded.
pub(crate) mod annotations {
    /// Maximum number of direct edges of a Pipeline, in all of its annotations, also wrong ones.
    /// Pipelines have tens of vertices.
    pub(crate) const MAX_EDGES: usize = 256;

    /// Maximum number of direct edges of all Pipelines in a namespace. Every write of a Vertex
    /// there looks at all of them.
    pub(crate) const MAX_EDGES_OF_NAMESPACE: usize = 4096;

    /// Maximum number of networks of a vertex, as of a MultiNetworkService.
    pub(crate) const MAX_NETWORKS: usize = 16;

    /// Maximum number of device resources of a vertex.
    pub(crate) const MAX_RESOURCES: usize = 16;

    /// Maximum number of ports of a vertex.
    pub(crate) const MAX_PORTS: usize = 16;

    /// Maximum number of vertices that a vertex sends to, and that it receives from. Their names
    /// are one environment variable, which Linux limits to 128 KiB.
    pub(crate) const MAX_PEERS: usize = 64;

    /// Number of problems of a Pipeline that are reported one by one. Others are only counted.
    pub(crate) const MAX_PROBLEMS: usize = 8;

    /// Number of edges that the event about a refused service names. Others are only counted.
    pub(crate) const NAMED_EDGES: usize = 3;

    /// Length of a problem's text, of which events show no more than 1024 bytes.
    pub(crate) const MAX_TEXT: usize = 800;
}

/// The webhook's HTTPS server.
pub(crate) mod webhook {
    use std::time::Duration;

    /// Limit of open connections. API servers keep a few each.
    pub(crate) const MAX_CONNECTIONS: usize = 256;

    /// Time limit for a TLS handshake, and for the body of a request.
    pub(crate) const HANDSHAKE_TIME: Duration = Duration::from_secs(5);

    /// Time without a request after which a connection is closed.
    pub(crate) const IDLE_TIME: Duration = Duration::from_secs(120);

    /// Time limit for a request as a whole. The manifests give the API server 5 s.
    pub(crate) const REQUEST_TIME: Duration = Duration::from_secs(10);

    /// Size limit of a request's body. It has two versions of a Vertex, of which etcd stores 1.5 MB
    /// each.
    pub(crate) const MAX_BODY: usize = 8 << 20;

    /// Size of a body that never waits for others. Nearly all are smaller. Connections bound the
    /// memory for these.
    pub(crate) const SMALL_BODY: usize = 64 << 10;

    /// Size limit of all bodies that are read or answered at a time, without the first 64 KiB of
    /// each. The rest of a large body waits for memory.
    pub(crate) const MEMORY: usize = 32 << 20;

    /// Time limit for reading a Pipeline from the API server, and for the lists after a start.
    pub(crate) const READ_TIME: Duration = Duration::from_secs(2);
}

/// Writes of services, resets of Vertices, and the certificate.
pub(crate) mod writes {
    use std::time::Duration;

    /// Time limit for a request to the API server.
    pub(crate) const REQUEST_TIME: Duration = Duration::from_secs(10);

    /// Number of concurrent requests.
    pub(crate) const CONCURRENCY: usize = 8;

    /// Number of writes in a namespace before other namespaces have their turn.
    pub(crate) const TURN: usize = 64;

    /// Pause before a failed write, or a probe of the webhook, is repeated.
    pub(crate) const PAUSE: Duration = Duration::from_secs(5);

    /// Longest pause before a service that the API server refuses is written again. Each pause is
    /// twice as long as the one before.
    pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(300);

    /// Number of resets of a Vertex for the same plan after an outage: one, and another if the
    /// webhook missed the first though it answered before and after.
    pub(crate) const MAX_RESETS: u32 = 2;

    /// Time between two resets of a Vertex for the same plan, each of which replaces its pods; also
    /// the time for which it has to keep its plan before its resets are forgotten.
    pub(crate) const RESET_PAUSE: Duration = Duration::from_secs(30);

    /// Number of failed probes in a row before an event reports that the webhook is not in effect.
    pub(crate) const PROBES_BEFORE_EVENT: u32 = 3;

    /// Interval between looks at certificate and webhook configuration.
    pub(crate) const CERTIFICATE_INTERVAL: Duration = Duration::from_secs(5);

    /// Number of events of a Pipeline in a row.
    pub(crate) const EVENT_BURST: u32 = 25;

    /// Interval between further events of a Pipeline.
    pub(crate) const EVENT_INTERVAL: Duration = Duration::from_secs(60);

    /// Maximum age of the lists that a new leader begins with.
    pub(crate) const FRESH: Duration = Duration::from_secs(5);

    /// Time that a new leader waits for lists, before it begins with what it knows.
    pub(crate) const LISTING: Duration = Duration::from_secs(30);
}

/// Readiness and the end of the process.
pub(crate) mod process {
    use std::time::Duration;

    /// Interval between looks at what is still to be listed, for `/readyz`.
    pub(crate) const READINESS_INTERVAL: Duration = Duration::from_secs(1);

    /// Time that the rest of a shutdown may take.
    pub(crate) const DEADLINE: Duration = Duration::from_secs(12);
}
