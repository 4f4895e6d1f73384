//! Connections back to clients, at the address that they come from and at no other, so that a
//! client cannot make the server connect to third parties.

use std::net::SocketAddr;
use std::time::Duration;

use multinet_client::{ConnectError, Connector, ConnectorBuilder, PeerSet, Tls, Transport};

use super::ServerArgs;
use crate::common::address_resolver;

/// How long the server tries to connect back.
const WAIT: Duration = Duration::from_secs(10);

/// Connector back to clients.
pub(super) struct Back {
    connector: Connector,
    /// Present if TLS is on without --tls-name: a client is then expected to have the certificate
    /// by which it came.
    by_certificate: Option<(ConnectorBuilder, Tls)>,
}

impl Back {
    /// # Errors
    ///
    /// If TLS cannot be set up.
    pub(super) fn new(args: &ServerArgs, transport: Transport) -> anyhow::Result<Self> {
        let mut connector = builder(args)?.transport(transport).wait(WAIT);
        let mut by_certificate = None;
        if let Some(tls) = args.listen.tls.tls()? {
            by_certificate = args.listen.tls.lacks_peer_names().then(|| (connector.clone(), tls.clone()));
            connector = connector.tls(tls);
        }
        Ok(Self { connector: connector.build()?, by_certificate })
    }

    /// Returns a connector back to a client that came with a certificate with these names.
    ///
    /// # Errors
    ///
    /// If none of the names can be expected of it.
    pub(super) fn connector(&self, names: &[String]) -> anyhow::Result<Connector> {
        let Some((builder, tls)) = &self.by_certificate else { return Ok(self.connector.clone()) };
        let tls = names.iter().try_fold(tls.clone(), |tls, name| tls.expect(name))?;
        Ok(builder.clone().tls(tls).build()?)
    }
}

/// Returns a builder of connectors with the server's settings, without TLS.
///
/// # Errors
///
/// As [`address_resolver`].
pub(super) fn builder(args: &ServerArgs) -> anyhow::Result<ConnectorBuilder> {
    Ok(Connector::builder()
        .resolver(address_resolver()?)
        .allow_default_network(args.listen.allow_default_network)
        .transport(args.listen.transport.transport())
        .rdma(args.device.rdma(args.listen.transport)))
}

/// Connects to a client.
///
/// # Errors
///
/// [`ConnectError`].
pub(super) async fn connect(connector: &Connector, client: SocketAddr) -> Result<PeerSet, ConnectError> {
    connector.connect(&client.ip().to_string(), &client.port().to_string()).await
}
