//! Port of a service, which every endpoint has.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

/// The transport protocol of a port: TCP, UDP or SCTP.
#[derive(
    Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash,
)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// `TCP`, the default. Also for RDMA, whose queue pairs are set up over a TCP connection.
    #[default]
    Tcp,
    /// `UDP`
    Udp,
    /// `SCTP`
    Sctp,
}

impl Protocol {
    /// Returns the protocol's name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }
}

/// A port that every endpoint has, as in EndpointSlice v1. The number is required, because there is
/// no container port to refer to by name.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    /// Name of the port, unique in the list: a DNS label of at most 62 characters. A named port has
    /// an SRV record _name._protocol. One port may have an empty name, and then no SRV record.
    /// Default: empty.
    #[serde(default)]
    #[schemars(schema_with = "schema::port_name")]
    pub name: String,

    /// Number of the port, 1 to 65535.
    #[schemars(schema_with = "schema::port_number")]
    pub port: u16,

    /// Transport protocol: TCP, UDP or SCTP. Default: TCP.
    #[serde(default)]
    pub protocol: Protocol,

    /// Application protocol of the port, such as multinet-rdma or example.com/name: a hint for
    /// clients, as in EndpointSlice v1. A qualified name of at most 253 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::qualified_name")]
    pub app_protocol: Option<String>,
}
