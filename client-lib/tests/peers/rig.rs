//! Listeners on loopback, and endpoints that tests set without DNS.
//!
//! With an address of an RDMA device in `MULTINET_TEST_RDMA`, listeners use that address, and
//! frames are sent over RDMA. client-lib/e2e/rdma runs the tests this way in a guest.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use futures::channel::mpsc::{UnboundedSender, unbounded};
use multinet_client::{
    Connector, ConnectorBuilder, Endpoint, Listener, ListenerBuilder, PeerSet, PodRef, Resolver, Transport,
};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Time limit of a handshake, longer than a busy machine or the guest needs.
const HANDSHAKE: Duration = Duration::from_secs(60);

/// Waits for a future, and panics after a time limit.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(at_most(PATIENCE), future).await.expect("in time")
}

/// Waits until a condition holds.
pub(crate) async fn eventually(mut holds: impl FnMut() -> bool) {
    soon(async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Returns the address of the RDMA device, if frames are to be sent over RDMA.
pub(crate) fn rdma() -> Option<IpAddr> {
    let address = std::env::var("MULTINET_TEST_RDMA").ok()?;
    Some(address.parse().expect("MULTINET_TEST_RDMA is an address"))
}

/// Returns a listener on loopback with small slots.
pub(crate) fn listener() -> ListenerBuilder {
    Listener::builder()
        .address(rdma().unwrap_or_else(|| Ipv4Addr::LOCALHOST.into()))
        .port(0)
        .frame_size(1 << 20)
        .slots(8)
        .patience(HANDSHAKE)
}

/// Returns a connector that uses no DNS. If frames are to be sent over RDMA, it requires RDMA.
pub(crate) fn connector() -> ConnectorBuilder {
    mixed_connector().transport(if rdma().is_some() { Transport::Rdma } else { Transport::Auto })
}

/// Returns a connector that also connects to peers by hand, which use TCP.
pub(crate) fn mixed_connector() -> ConnectorBuilder {
    let nobody = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
    let resolver = Resolver::builder().servers([nobody]).build().unwrap();
    Connector::builder().resolver(resolver).patience(HANDSHAKE)
}

/// Returns a time limit: this time, or longer in the slow guest.
pub(crate) fn at_most(time: Duration) -> Duration {
    if rdma().is_some() { time * 10 } else { time }
}

/// Returns the endpoint that DNS would have for a listener.
pub(crate) fn endpoint(listener: &Listener, host: &str, uid: Option<&str>) -> Endpoint {
    let mut endpoint = Endpoint::at(listener.local_addresses()[0]);
    endpoint.host = host.to_owned();
    endpoint.target = format!("{host}.infer.vision.svc.multinet.cluster.local");
    endpoint.pod = uid.map(|uid| {
        let mut pod = PodRef::default();
        pod.uid = Some(uid.to_owned());
        pod
    });
    endpoint
}

/// Creates a PeerSet whose endpoints the test sets.
pub(crate) fn follow(connector: ConnectorBuilder) -> (PeerSet, UnboundedSender<Vec<Endpoint>>) {
    let (endpoints, changes) = unbounded();
    (connector.build().unwrap().follow("infer.vision.svc.multinet", changes), endpoints)
}
