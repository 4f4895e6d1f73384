//! Listeners on loopback, and endpoints that come and go without DNS.
//!
//! Where there is an RDMA device, `MULTINET_TEST_RDMA` may be one of its addresses: then listeners are there, and frames go by RDMA. client-lib/e2e/rdma
//! has it so, in a guest.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use futures::channel::mpsc::{UnboundedSender, unbounded};
use multinet_client::{
    Connector, ConnectorBuilder, Endpoint, Listener, ListenerBuilder, PeerSet, PodRef, Resolver, Transport,
};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What a handshake may take: more than a busy machine, or the guest, needs for it.
const HANDSHAKE: Duration = Duration::from_secs(60);

/// Within time, or the test has failed.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(at_most(PATIENCE), future).await.expect("in time")
}

/// The address that stands for RDMA, if frames are to go by it.
pub(crate) fn rdma() -> Option<IpAddr> {
    let address = std::env::var("MULTINET_TEST_RDMA").ok()?;
    Some(address.parse().expect("MULTINET_TEST_RDMA is an address"))
}

/// A listener on loopback with small slots.
pub(crate) fn listener() -> ListenerBuilder {
    Listener::builder()
        .address(rdma().unwrap_or_else(|| Ipv4Addr::LOCALHOST.into()))
        .port(0)
        .frame_size(1 << 20)
        .slots(8)
        .patience(HANDSHAKE)
}

/// A connector that asks no DNS. If frames are to go by RDMA, nothing else will do.
pub(crate) fn connector() -> ConnectorBuilder {
    mixed_connector().transport(if rdma().is_some() { Transport::Rdma } else { Transport::Auto })
}

/// The same for peers by hand, too, who do without RDMA.
pub(crate) fn mixed_connector() -> ConnectorBuilder {
    let nobody = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
    let resolver = Resolver::builder().servers([nobody]).build().unwrap();
    Connector::builder().resolver(resolver).patience(HANDSHAKE)
}

/// How long something may take that should take no longer than this: the guest is slow.
pub(crate) fn at_most(time: Duration) -> Duration {
    if rdma().is_some() { time * 10 } else { time }
}

/// What a listener is in DNS.
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

/// A PeerSet whose endpoints the test decides on.
pub(crate) fn follow(connector: ConnectorBuilder) -> (PeerSet, UnboundedSender<Vec<Endpoint>>) {
    let (endpoints, changes) = unbounded();
    (connector.build().unwrap().follow("infer.vision.svc.multinet", changes), endpoints)
}
