//! `multinet bench server`: receives messages, releases them at once, and counts them. Clients that
//! measure latency get echoes.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use multinet_client::{Buffer, Connector, ConnectorBuilder, Frame, Listener, PeerSet, Received, Sender, Tls};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::interval;
use tracing::{info, warn};

use super::ServerArgs;
use super::latency::EchoRequest;
use super::memory::Memory;
use crate::common::address_resolver;
use crate::output::print;
use crate::signals::Signals;

/// Most clients of latency tests to which the server sends echoes at a time.
const MAX_ECHOES: usize = 64;

/// How often the server drops its connections back to clients that have gone.
const SWEEP: Duration = Duration::from_secs(1);

pub(super) async fn run(args: ServerArgs) -> anyhow::Result<ExitCode> {
    // Before it prints that it listens: a program that reads this may send a signal.
    let mut signals = Signals::new()?;
    let mut server = Server { messages: 0, bytes: 0, echoes: Echoes::new(&args)? };
    let mut listener = args
        .listen
        .listener()?
        .rdma(args.device.rdma(args.listen.transport))
        .port(args.port)
        .frame_size(args.size)
        .slots(args.slots);
    if let Some(gpu) = server.echoes.memory.gpu() {
        listener = listener.gpu(Arc::clone(gpu));
    }
    let listener = listener.bind().await?;
    for address in listener.local_addresses() {
        print(&format!("listening on {address}\n"))?;
    }
    tokio::select! {
        outcome = server.serve(&listener) => outcome?,
        _ = signals.next() => {}
    }
    print(&format!("{} messages, {} bytes\n", server.messages, server.bytes))?;
    Ok(ExitCode::SUCCESS)
}

struct Server {
    messages: u64,
    bytes: u64,
    echoes: Echoes,
}

impl Server {
    async fn serve(&mut self, listener: &Listener) -> anyhow::Result<()> {
        let mut sweep = interval(SWEEP);
        loop {
            tokio::select! {
                received = listener.recv() => self.receive(received?)?,
                Some((session, peers)) = self.echoes.ready.recv() => self.echoes.begin(session, peers)?,
                _ = sweep.tick() => self.echoes.forget_gone(),
            }
        }
    }

    /// Counts a message, and answers one that asks for an echo. It does not acknowledge, so that a
    /// sender of something that is to be kept learns that this is no receiver for it.
    fn receive(&mut self, received: Received) -> anyhow::Result<()> {
        self.messages += 1;
        self.bytes += received.len() as u64;
        self.echoes.memory.receive(&received)?;
        let session = received.id().session;
        match EchoRequest::decode(received.metadata()) {
            Some(EchoRequest { echo_to_port: 0 }) => drop(self.echoes.to.remove(&session)),
            Some(hello) => {
                self.echoes.connect(session, received.sender(), hello.echo_to_port);
            }
            None => self.echoes.echo(session, received.len())?,
        }
        Ok(())
    }
}

/// Connections back to clients that get as many bytes back as they send.
struct Echoes {
    connector: Connector,
    /// Present if TLS is on without --tls-name: a client is then expected to have the certificate
    /// by which it came.
    by_certificate: Option<(ConnectorBuilder, Tls)>,
    /// Memory in which the payloads of echoes lie.
    memory: Memory,
    /// Payload of the last echo, which the next one of the same length uses again.
    payload: Buffer,
    to: HashMap<u128, Echo>,
    /// Takes the connections back to clients, with the clients' sessions, from the tasks that make
    /// them.
    connected: mpsc::Sender<(u128, PeerSet)>,
    ready: mpsc::Receiver<(u128, PeerSet)>,
}

/// Connection back to one client, by which it gets its echoes.
struct Echo {
    peers: PeerSet,
    /// Task that sends an echo for which the client had no room yet.
    late: Option<JoinHandle<()>>,
}

impl Drop for Echo {
    fn drop(&mut self) {
        if let Some(late) = &self.late {
            late.abort();
        }
    }
}

impl Echoes {
    fn new(args: &ServerArgs) -> anyhow::Result<Self> {
        let mut connector = Connector::builder()
            .resolver(address_resolver()?)
            .allow_default_network(args.listen.allow_default_network)
            .transport(args.listen.transport.transport())
            .rdma(args.device.rdma(args.listen.transport))
            .wait(Duration::from_secs(10));
        let mut by_certificate = None;
        if let Some(tls) = args.listen.tls.tls()? {
            by_certificate = args.listen.tls.lacks_peer_names().then(|| (connector.clone(), tls.clone()));
            connector = connector.tls(tls);
        }
        let (connected, ready) = mpsc::channel(MAX_ECHOES);
        let memory = Memory::of(args.device.use_cuda)?;
        let payload = Buffer::host(0);
        let connector = connector.build()?;
        Ok(Self { connector, by_certificate, memory, payload, to: HashMap::new(), connected, ready })
    }

    /// Starts to connect back to the address of a client, at the port on which it expects echoes.
    fn connect(&self, session: u128, sender: Sender<'_>, port: u16) {
        let client = SocketAddr::new(sender.address().ip(), port);
        if self.to.len() >= MAX_ECHOES {
            return warn!(%client, "the client gets no echoes: {MAX_ECHOES} others get them already");
        }
        // Each connection that is being made has a permit.
        let Ok(permit) = self.connected.clone().try_reserve_owned() else {
            return warn!(%client, "the client gets no echoes: too many clients ask for them at once");
        };
        let connector = match self.connector_to(sender.certificate_names()) {
            Ok(connector) => connector,
            Err(error) => {
                return warn!(%client, "the client gets no echoes: {error}; give a name of its certificate by --tls-name");
            }
        };
        tokio::spawn(async move {
            let (ip, port) = (client.ip().to_string(), client.port().to_string());
            match connector.connect(&ip, &port).await {
                Ok(peers) => {
                    info!(%client, "echoes");
                    permit.send((session, peers));
                }
                Err(error) => warn!(%client, "the client gets no echoes: {error}"),
            }
        });
    }

    /// Returns a connector back to a client that came with a certificate with these names.
    fn connector_to(&self, names: &[String]) -> anyhow::Result<Connector> {
        let Some((builder, tls)) = &self.by_certificate else { return Ok(self.connector.clone()) };
        let tls = names.iter().try_fold(tls.clone(), |tls, name| tls.expect(name))?;
        Ok(builder.clone().tls(tls).build()?)
    }

    fn begin(&mut self, session: u128, peers: PeerSet) -> anyhow::Result<()> {
        self.to.insert(session, Echo { peers, late: None });
        // The answer to the first message, which had no payload.
        self.echo(session, 0)
    }

    fn echo(&mut self, session: u128, length: usize) -> anyhow::Result<()> {
        let Some(echo) = self.to.get_mut(&session) else { return Ok(()) };
        if self.payload.len() != length {
            self.payload = self.memory.message(length)?;
        }
        let frame = Frame::new(self.payload.clone());
        let Err((frame, _)) = echo.peers.try_send(frame) else { return Ok(()) };
        // The client has not granted room yet. The server must not wait for one client; and a
        // client with one message under way has at most one late echo.
        if echo.late.as_ref().is_none_or(JoinHandle::is_finished) {
            let peers = echo.peers.clone();
            echo.late = Some(tokio::spawn(async move { drop(peers.send(frame).await) }));
        }
        Ok(())
    }

    fn forget_gone(&mut self) {
        self.to.retain(|_, echo| echo.peers.statistics().connected > 0);
    }
}
