//! Scripted DNS server, whose answers a test may change at any time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hickory_resolver::proto::op::{Message, ResponseCode};
use hickory_resolver::proto::rr::rdata::{A, AAAA, SOA, SRV, TXT};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use multinet_client::{Resolver, ResolverBuilder};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Search path of a pod.
pub(crate) const SEARCH: [&str; 3] = ["vision.svc.cluster.local", "svc.cluster.local", "cluster.local"];
/// Service of most tests, as a user writes it.
pub(crate) const SERVICE: &str = "infer.vision.svc.multinet";
/// Full name of [`SERVICE`].
pub(crate) const FULL_NAME: &str = "infer.vision.svc.multinet.cluster.local";

/// Faulty reaction of the server to a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Code(ResponseCode),
    Silence,
    /// A reply that has the query's ID and is otherwise not a DNS message.
    Garbage,
    /// A reply to another question.
    WrongQuestion,
    /// An empty reply with the flag TC, also over TCP.
    Truncation,
}

/// Query that the server has received.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Asked {
    pub(crate) transport: Transport,
    pub(crate) name: String,
    pub(crate) kind: RecordType,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Transport {
    Udp,
    Tcp,
}

/// Records and behaviour of the server.
pub(crate) struct Zone {
    records: BTreeMap<(String, RecordType), Vec<RData>>,
    /// Faults by name; those under "" apply to all names.
    pub(crate) faults: BTreeMap<String, Fault>,
    pub(crate) ttl: u32,
    /// Largest number of additional records in an answer with SRV records.
    pub(crate) glue: usize,
    pub(crate) delay: Duration,
    /// Whether the server accepts connections over TCP.
    pub(crate) has_tcp: bool,
    /// Zones whose SOA records are in negative answers.
    pub(crate) soas: Vec<&'static str>,
    /// Wildcard records, by the domain above them.
    pub(crate) wildcards: Vec<(&'static str, RData)>,
    asked: Vec<Asked>,
    in_flight: usize,
    pub(crate) most_in_flight: usize,
}

impl Zone {
    pub(crate) fn add(&mut self, name: &str, data: RData) {
        self.records.entry((name.to_owned(), data.record_type())).or_default().push(data);
    }

    /// Adds an endpoint of a service, with a text for each address, as `10.0.0.1 net=rail0 uid=x`.
    pub(crate) fn add_endpoint(&mut self, service: &str, host: &str, port: (&str, u16), addresses: &[&str]) {
        let target = format!("{host}.{service}");
        let srv = SRV::new(0, 1, port.1, name(&target));
        self.add(&format!("{}.{service}", port.0), RData::SRV(srv));
        for text in addresses {
            let ip: IpAddr = text.split(' ').next().unwrap().parse().unwrap();
            self.add(&target, address(ip));
            self.add(service, address(ip));
            let strings = format!("addr={text}").split(' ').map(str::to_owned).collect();
            self.add(&target, RData::TXT(TXT::new(strings)));
        }
    }

    /// Removes all records.
    pub(crate) fn clear(&mut self) {
        self.records.clear();
    }

    /// Returns the queries since the last call, sorted.
    pub(crate) fn asked(&mut self) -> Vec<Asked> {
        let mut asked = std::mem::take(&mut self.asked);
        asked.sort();
        asked
    }

    fn answer(&mut self, transport: Transport, packet: &[u8]) -> Option<Vec<u8>> {
        let request = Message::from_vec(packet).unwrap();
        let query = request.queries.first().unwrap().clone();
        let name = text(query.name());
        self.asked.push(Asked { transport, name: name.clone(), kind: query.query_type() });

        let mut reply = Message::response(request.id, request.op_code);
        reply.add_query(query.clone());
        let fault = self.faults.get(&name).or_else(|| self.faults.get(""));
        match fault {
            Some(Fault::Silence) => return None,
            Some(Fault::Code(code)) => {
                reply.metadata.response_code = *code;
                return Some(reply.to_vec().unwrap());
            }
            Some(Fault::Garbage) => return Some([&packet[..2], b"no DNS here"].concat()),
            Some(Fault::WrongQuestion) => {
                let mut query = query;
                query.set_name(Name::from_ascii("somebody.else.").unwrap());
                reply.queries = vec![query];
            }
            Some(Fault::Truncation) => reply.metadata.truncation = true,
            None => self.fill(&mut reply, &name, query.query_type()),
        }
        let bytes = reply.to_vec().unwrap();
        if transport == Transport::Udp && bytes.len() > 1232 {
            return Some(reply.truncate().to_vec().unwrap());
        }
        Some(bytes)
    }

    fn fill(&self, reply: &mut Message, owner: &str, kind: RecordType) {
        let below = format!(".{owner}");
        let exists = self.records.keys().any(|(name, _)| name == owner || name.ends_with(&below));
        if !exists {
            self.fill_without(reply, owner, kind);
            return;
        }
        for data in self.records.get(&(owner.to_owned(), kind)).into_iter().flatten() {
            reply.add_answer(Record::from_rdata(name(owner), self.ttl, data.clone()));
        }
        let targets: BTreeSet<Name> = reply
            .answers
            .iter()
            .filter_map(|record| match &record.data {
                RData::SRV(srv) => Some(srv.target.clone()),
                _ => None,
            })
            .collect();
        let glue = targets.iter().flat_map(|target| {
            [RecordType::A, RecordType::AAAA]
                .into_iter()
                .filter_map(|kind| self.records.get(&(text(target), kind)))
                .flatten()
                .map(|data| Record::from_rdata(target.clone(), self.ttl, data.clone()))
        });
        reply.add_additionals(glue.take(self.glue));
    }
}

impl Zone {
    /// Writes the answer for a name without records: that of a wildcard, or a negative one.
    fn fill_without(&self, reply: &mut Message, owner: &str, kind: RecordType) {
        let is_below = |domain: &str| owner.ends_with(&format!(".{domain}"));
        let mut wildcards = self.wildcards.iter().filter(|(domain, _)| is_below(domain)).peekable();
        if wildcards.peek().is_some() {
            for (_, data) in wildcards.filter(|(_, data)| data.record_type() == kind) {
                reply.add_answer(Record::from_rdata(name(owner), self.ttl, data.clone()));
            }
            return;
        }
        reply.metadata.response_code = ResponseCode::NXDomain;
        let zones = self.soas.iter().filter(|zone| is_below(zone));
        if let Some(zone) = zones.max_by_key(|zone| zone.len()) {
            let soa = SOA::new(name("ns.test"), name("hostmaster.test"), 1, 7200, 1800, 86400, 5);
            reply.add_authority(Record::from_rdata(name(zone), self.ttl, RData::SOA(soa)));
        }
    }
}

/// Running server, which ends with the test.
pub(crate) struct Server {
    pub(crate) addr: SocketAddr,
    zone: Arc<Mutex<Zone>>,
    _tasks: JoinSet<()>,
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::start_on("127.0.0.1").await
    }

    pub(crate) async fn start_on(ip: &str) -> Self {
        let (udp, tcp) = bind(ip).await;
        let addr = udp.local_addr().unwrap();
        let zone = Arc::new(Mutex::new(Zone {
            records: BTreeMap::new(),
            faults: BTreeMap::new(),
            ttl: 60,
            glue: usize::MAX,
            delay: Duration::ZERO,
            has_tcp: true,
            soas: Vec::new(),
            wildcards: Vec::new(),
            asked: Vec::new(),
            in_flight: 0,
            most_in_flight: 0,
        }));
        let mut tasks = JoinSet::new();
        tasks.spawn(serve_udp(udp, zone.clone()));
        tasks.spawn(serve_tcp(tcp, zone.clone()));
        Self { addr, zone, _tasks: tasks }
    }

    pub(crate) fn zone(&self) -> MutexGuard<'_, Zone> {
        self.zone.lock().unwrap()
    }

    /// Returns a resolver in a pod with this server.
    pub(crate) fn resolver(&self) -> Resolver {
        builder(&[self.addr]).build().unwrap()
    }

    /// Returns such a resolver with a short timeout.
    pub(crate) fn impatient(&self) -> Resolver {
        builder(&[self.addr]).timeout(IMPATIENT).build().unwrap()
    }
}

/// Timeout for servers that never answer. It is long enough for others to answer on a busy machine.
pub(crate) const IMPATIENT: Duration = Duration::from_millis(700);

/// Returns the builder of a resolver in a pod with these servers.
pub(crate) fn builder(servers: &[SocketAddr]) -> ResolverBuilder {
    let timeout = Duration::from_secs(10);
    Resolver::builder().servers(servers.iter().copied()).search(SEARCH).ndots(5).timeout(timeout)
}

/// Binds the same port for both transports.
async fn bind(ip: &str) -> (Arc<UdpSocket>, TcpListener) {
    loop {
        let udp = UdpSocket::bind((ip, 0)).await.unwrap();
        if let Ok(tcp) = TcpListener::bind(udp.local_addr().unwrap()).await {
            return (Arc::new(udp), tcp);
        }
    }
}

async fn serve_udp(socket: Arc<UdpSocket>, zone: Arc<Mutex<Zone>>) {
    let mut tasks = JoinSet::new();
    let mut buffer = [0; 4096];
    loop {
        let (length, peer) = socket.recv_from(&mut buffer).await.unwrap();
        let (socket, zone, packet) = (socket.clone(), zone.clone(), buffer[..length].to_vec());
        tasks.spawn(async move {
            if let Some(reply) = reply(&zone, Transport::Udp, &packet).await {
                socket.send_to(&reply, peer).await.unwrap();
            }
        });
    }
}

async fn serve_tcp(listener: TcpListener, zone: Arc<Mutex<Zone>>) {
    let mut tasks = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        if zone.lock().unwrap().has_tcp {
            tasks.spawn(serve_connection(stream, zone.clone()));
        }
    }
}

async fn serve_connection(mut stream: TcpStream, zone: Arc<Mutex<Zone>>) {
    while let Ok(length) = stream.read_u16().await {
        let mut packet = vec![0; length.into()];
        stream.read_exact(&mut packet).await.unwrap();
        if let Some(reply) = reply(&zone, Transport::Tcp, &packet).await {
            let length = u16::try_from(reply.len()).unwrap();
            stream.write_all(&[&length.to_be_bytes()[..], &reply].concat()).await.unwrap();
        }
    }
}

async fn reply(zone: &Mutex<Zone>, transport: Transport, packet: &[u8]) -> Option<Vec<u8>> {
    let delay = {
        let mut zone = zone.lock().unwrap();
        zone.in_flight += 1;
        zone.most_in_flight = zone.most_in_flight.max(zone.in_flight);
        zone.delay
    };
    if !delay.is_zero() {
        sleep(delay).await;
    }
    let mut zone = zone.lock().unwrap();
    zone.in_flight -= 1;
    zone.answer(transport, packet)
}

pub(crate) fn address(ip: IpAddr) -> RData {
    match ip {
        IpAddr::V4(v4) => RData::A(A(v4)),
        IpAddr::V6(v6) => RData::AAAA(AAAA(v6)),
    }
}

fn name(text: &str) -> Name {
    Name::from_ascii(format!("{text}.")).unwrap()
}

fn text(name: &Name) -> String {
    name.to_ascii().trim_end_matches('.').to_lowercase()
}
