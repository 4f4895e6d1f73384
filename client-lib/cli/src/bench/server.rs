//! `multinet bench server`: takes what comes, lets go of it at once, and counts. Clients that measure latency get echoes.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use multinet_client::{Buffer, Connector, ConnectorBuilder, Frame, Listener, PeerSet, Received, Sender, Tls};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::interval;
use tracing::{info, warn};

use super::ServerArgs;
use super::latency::EchoRequest;
use super::memory::Memory;
use crate::common::address_resolver;
use crate::output::print;

/// Clients that get echoes at a time, at most.
const MAX_ECHOES: usize = 64;

/// How often clients that have gone are forgotten.
const SWEEP: Duration = Duration::from_secs(1);

pub(super) async fn run(args: ServerArgs) -> anyhow::Result<ExitCode> {
    // Before anybody is told that it listens.
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let mut server = Server::new(&args)?;
    let mut listener = args
        .listen
        .listener()?
        .rdma(args.device.rdma(args.listen.transport))
        .port(args.port)
        .frame_size(args.size)
        .slots(args.slots);
    if let Some(gpu) = server.echoes.kind.gpu() {
        listener = listener.gpu(Arc::clone(gpu));
    }
    let listener = listener.bind().await?;
    for address in listener.local_addresses() {
        print(&format!("listening on {address}\n"))?;
    }
    tokio::select! {
        outcome = server.serve(&listener) => outcome?,
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
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
    fn new(args: &ServerArgs) -> anyhow::Result<Self> {
        Ok(Self { messages: 0, bytes: 0, echoes: Echoes::new(args)? })
    }

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

    /// Does not acknowledge, so that nobody who wants something kept takes this for its receiver.
    fn receive(&mut self, received: Received) -> anyhow::Result<()> {
        self.messages += 1;
        self.bytes += received.len() as u64;
        self.echoes.kind.take(&received)?;
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

/// Clients that get as much back as they send.
struct Echoes {
    connector: Connector,
    /// With TLS, where nobody has said what clients are called, each is expected to be who it was when it came.
    by_certificate: Option<(ConnectorBuilder, Tls)>,
    /// Where echoes lie.
    kind: Memory,
    /// As long as the last echo.
    memory: Buffer,
    to: HashMap<u128, Echo>,
    /// Those that are being connected, by way of their tasks.
    connected: mpsc::Sender<(u128, PeerSet)>,
    ready: mpsc::Receiver<(u128, PeerSet)>,
}

/// The way back to one client.
struct Echo {
    peers: PeerSet,
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
        let memory = Buffer::host(0);
        let kind = Memory::of(args.device.use_cuda)?;
        let connector = connector.build()?;
        Ok(Self { connector, by_certificate, kind, memory, to: HashMap::new(), connected, ready })
    }

    /// Connects to where a client has come from.
    fn connect(&self, session: u128, sender: Sender<'_>, port: u16) {
        let client = SocketAddr::new(sender.address().ip(), port);
        if self.to.len() >= MAX_ECHOES {
            return warn!(%client, "no echo: {MAX_ECHOES} clients get one already");
        }
        // There is one permit for each connection that is being made.
        let Ok(permit) = self.connected.clone().try_reserve_owned() else {
            return warn!(%client, "no echo: too many clients want one at once");
        };
        let connector = match self.connector_to(sender.certificate_names()) {
            Ok(connector) => connector,
            Err(error) => return warn!(%client, "no echo: {error}: name it by --tls-name"),
        };
        tokio::spawn(async move {
            let (ip, port) = (client.ip().to_string(), client.port().to_string());
            match connector.connect(&ip, &port).await {
                Ok(peers) => {
                    info!(%client, "echoes");
                    permit.send((session, peers));
                }
                Err(error) => warn!(%client, "no echo: {error}"),
            }
        });
    }

    /// What connects to whom a certificate with these names is for.
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
        if self.memory.len() != length {
            self.memory = self.kind.message(length)?;
        }
        let frame = Frame::new(self.memory.clone());
        let Err((frame, _)) = echo.peers.try_send(frame) else { return Ok(()) };
        // The client has not told of its free room yet. Nobody waits here for it; and a client that has one message under way
        // has one echo that is late.
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
