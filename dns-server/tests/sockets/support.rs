//! An engine with a small and a big service, queries for them, and framing.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, LazyLock};

use multinet_dns::answer::cookie::CookieSigner;
use multinet_dns::net::engine::{Engine, Settings};
use multinet_dns::net::tls::Certificates;
use multinet_dns::ops::metrics::Tallies;
use multinet_dns::store::answers::{Answers, Freshness};
use multinet_dns::store::endpoints::Endpoint;
use multinet_dns::store::index::Service;
use multinet_dns::store::slice::Slice;
use multinet_dns::store::state::{Objects, State};
use multinet_dns::store::zone::{ZoneSettings, Zones};
use multinet_runtime::ObjectKey;
use multinet_testing::pki::{Authority, Folder};
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Record type A.
pub(crate) const A: u16 = 1;

/// Query type of a whole zone.
pub(crate) const AXFR: u16 = 252;

/// A service with one address.
pub(crate) const SMALL: &str = "small.n.svc.z";

/// A service whose addresses nearly fill a TCP message.
pub(crate) const BIG: &str = "big.n.svc.z";

/// Addresses of the big service.
pub(crate) const BIG_ADDRESSES: u32 = 4000;

/// Returns a shared engine for zone `z` with the two services. This host may transfer the zone.
pub(crate) fn engine() -> Engine {
    static ENGINE: LazyLock<Engine> = LazyLock::new(own_engine);
    ENGINE.clone()
}

/// Returns an engine like that of [`engine`], with transfer slots of its own.
pub(crate) fn own_engine() -> Engine {
    let transfer_to = vec!["127.0.0.0/8".parse().unwrap()];
    let settings = Settings { transfer_to, ..Settings::new(cookie_signer()) };
    Engine::new(Arc::new(state()), settings, Tallies::default())
}

/// Returns the cookie secrets of all engines.
pub(crate) fn cookie_signer() -> CookieSigner {
    CookieSigner::new([7; 16], None)
}

/// Returns the state that engines answer from.
pub(crate) fn state() -> State {
    let settings = ZoneSettings { ttl: 5, ns_addresses: BTreeSet::new() };
    let zones = Zones::new(vec!["z".parse().unwrap()], &[], &settings).unwrap();
    let state = State::new(Arc::new(Answers::new(zones, 1)), 5, |_| ());
    let key = |name: &str| ObjectKey { namespace: "n".into(), name: name.into() };
    let slice = |service: &str, addresses: u32| {
        let hosts: Vec<(Ipv4Addr, String)> = (1..=addresses)
            .map(|number| {
                let address = Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 0).to_bits() + number);
                (address, format!("a-host-with-quite-a-long-name-{number}"))
            })
            .collect();
        let endpoints = hosts.iter().map(|(address, host)| Endpoint {
            address: (*address).into(),
            host,
            named: true,
            txt: b"\x01x",
        });
        let slice = Slice {
            service: service.into(),
            network: "net".into(),
            endpoints: endpoints.collect(),
            ..Slice::default()
        };
        (key(service), Arc::new(slice))
    };
    let services = ["small", "big"].map(|name| (key(name), Service::default()));
    let slices = vec![slice("small", 1), slice("big", BIG_ADDRESSES)];
    state.restore(Objects { services: services.into(), slices, ..Objects::default() });
    state.answers().set_freshness(Freshness::Current);
    state
}

/// Address of the client.
pub(crate) const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Returns a query without EDNS.
pub(crate) fn query(id: u16, name: &str, qtype: u16) -> Vec<u8> {
    let mut packet = id.to_be_bytes().to_vec();
    packet.extend([0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        packet.push(label.len() as u8);
        packet.extend(label.as_bytes());
    }
    packet.push(0);
    packet.extend(qtype.to_be_bytes());
    packet.extend([0, 1]);
    packet
}

/// Returns a query with an OPT record that has these encoded options.
pub(crate) fn query_with_opt(id: u16, name: &str, qtype: u16, payload: u16, options: &[u8]) -> Vec<u8> {
    let mut packet = query(id, name, qtype);
    packet[11] = 1;
    packet.extend([0, 0, 41]);
    packet.extend(payload.to_be_bytes());
    packet.extend([0; 4]);
    packet.extend((options.len() as u16).to_be_bytes());
    packet.extend(options);
    packet
}

/// Encodes an EDNS option.
pub(crate) fn option(code: u16, data: &[u8]) -> Vec<u8> {
    [&code.to_be_bytes()[..], &(data.len() as u16).to_be_bytes(), data].concat()
}

/// Returns a message with its length in front.
pub(crate) fn frame(message: &[u8]) -> Vec<u8> {
    let mut frame = (message.len() as u16).to_be_bytes().to_vec();
    frame.extend(message);
    frame
}

/// Returns framed queries with IDs from 0.
pub(crate) fn frames(count: u16, name: &str) -> Vec<u8> {
    (0..count).flat_map(|id| frame(&query(id, name, A))).collect()
}

/// Reads the next message of a stream; `None` at its end.
pub(crate) async fn next_message(stream: &mut (impl AsyncRead + Unpin)) -> Option<Vec<u8>> {
    let length = stream.read_u16().await.ok()?;
    let mut message = vec![0; usize::from(length)];
    stream.read_exact(&mut message).await.unwrap();
    Some(message)
}

/// Reads all messages up to the end of a stream.
pub(crate) async fn messages(stream: &mut (impl AsyncRead + Unpin)) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    while let Some(message) = next_message(stream).await {
        messages.push(message);
    }
    messages
}

/// Returns a server's certificate and key, and the roots that clients trust.
pub(crate) fn certificates() -> (Certificates, RootCertStore) {
    let authority = Authority::new();
    let folder = Folder::of(&authority.issue(&["dns.test"]), "");
    let [cert, key, _] = folder.paths();
    (Certificates::load(cert, key).unwrap(), authority.roots())
}

/// Returns the TLS configuration of a client with these roots and protocols.
pub(crate) fn client_config(trusted: &RootCertStore, alpn: &[&[u8]]) -> ClientConfig {
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(trusted.clone())
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    config
}

/// Returns the ID of a message.
pub(crate) fn id(message: &[u8]) -> u16 {
    u16::from_be_bytes([message[0], message[1]])
}

/// Returns the number of answers in a message.
pub(crate) fn answers(message: &[u8]) -> u16 {
    u16::from_be_bytes([message[6], message[7]])
}

/// Returns the IDs of messages, and checks that each has the one address of the small service.
pub(crate) fn small_ids(messages: &[Vec<u8>]) -> Vec<u16> {
    assert!(messages.iter().all(|message| answers(message) == 1));
    messages.iter().map(|message| id(message)).collect()
}
