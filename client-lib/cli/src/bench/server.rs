//! `multinet bench server`: receives messages, releases them at once, and counts them. Clients that
//! measure latency get echoes.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use multinet_client::resolve::Question;
use multinet_client::{Buffer, Frame, Listener, PeerSet, Received, Sender, Transport};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::interval;
use tracing::{info, warn};

use super::back::{self, Back};
use super::latency::EchoRequest;
use super::members::{ANY_PORT, Members};
use super::memory::Memory;
use super::on_request::OnRequest;
use super::target::Target;
use super::{ServerArgs, request};
use crate::output::{Usage, print};
use crate::signals::Signals;

/// Most clients of latency tests to which the server sends echoes at a time.
const MAX_ECHOES: usize = 64;

/// How often the server drops its connections back to clients that have gone.
const SWEEP: Duration = Duration::from_secs(1);

pub(super) async fn run(args: ServerArgs) -> anyhow::Result<ExitCode> {
    // Before it prints that it listens: a program that reads this may send a signal.
    let mut signals = Signals::new()?;
    let echoes = Echoes::new(&args)?;
    // As in a manifest that sets MULTINET_MATRIX to nothing.
    let matrix = args.matrix.as_deref().filter(|service| !service.is_empty());
    let matrix = matrix.map(matrix_service).transpose()?;
    let members = match &matrix {
        Some(service) => Some(Members::follow(&args.dns.strict_resolver()?, service)),
        None => None,
    };
    let mut listener = args
        .listen
        .listener()?
        .rdma(args.device.rdma(args.listen.transport))
        .port(args.port)
        .frame_size(args.size)
        .slots(args.slots);
    if let Some(gpu) = echoes.memory.gpu() {
        listener = listener.gpu(Arc::clone(gpu));
    }
    // Members have the service's certificate. Others of the same authority must not ask.
    if let (Some(service), true, Some(tls)) =
        (&matrix, args.listen.tls.lacks_peer_names(), args.listen.tls.tls()?)
    {
        listener = listener.tls(tls.expect(certified(service))?);
    }
    if matrix.is_some() && args.listen.transport.transport() == Transport::Rdma {
        // Questions come by TCP. The measurements that this server makes still need RDMA.
        listener = listener.transport(Transport::Auto);
    }
    if let Some(members) = members.clone() {
        listener = listener.admit(move |address| members.check(address));
    }
    let listener = listener.bind().await?;
    let port = listener.local_addresses().first().map_or(args.port, SocketAddr::port);
    let on_request = OnRequest::new(&args, members, port)?;
    let mut server = Server {
        messages: 0,
        bytes: 0,
        back: Back::new(&args, args.listen.transport.transport())?,
        echoes,
        on_request,
    };
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

/// Returns the name of the service of `--matrix`.
fn matrix_service(text: &str) -> anyhow::Result<String> {
    match Target::service(text)? {
        (service, None) => {
            Question::parse(&service, ANY_PORT)?;
            Ok(service)
        }
        (service, Some(port)) => {
            Err(Usage(format!("--matrix {service} takes no port: leave out :{port}")).into())
        }
    }
}

/// Returns the name that the certificates of a service have: the same on all of its networks.
fn certified(service: &str) -> &str {
    service.split_once("._net.").map_or(service, |(_, service)| service)
}

struct Server {
    messages: u64,
    bytes: u64,
    back: Back,
    echoes: Echoes,
    on_request: OnRequest,
}

impl Server {
    async fn serve(&mut self, listener: &Listener) -> anyhow::Result<()> {
        let mut sweep = interval(SWEEP);
        loop {
            tokio::select! {
                received = listener.recv() => self.receive(received?, |session| listener.is_connected(session))?,
                Some((session, peers)) = self.echoes.ready.recv() => self.echoes.begin(session, peers)?,
                _ = sweep.tick() => {
                    self.echoes.forget_gone();
                    self.on_request.forget_gone(|session| listener.is_connected(session));
                }
            }
        }
    }

    /// Counts a message, and answers one that asks for an echo or a measurement. It does not
    /// acknowledge, so that a sender of something that is to be kept learns that this is no
    /// receiver for it.
    fn receive(&mut self, received: Received, is_connected: impl Fn(u128) -> bool) -> anyhow::Result<()> {
        self.messages += 1;
        self.bytes += received.len() as u64;
        self.echoes.memory.receive(&received)?;
        let session = received.id().session;
        if let Some(question) = request::decode(received.metadata()) {
            self.on_request.forget_gone(is_connected);
            self.on_request.take(session, received.sender(), question);
            return Ok(());
        }
        match EchoRequest::decode(received.metadata()) {
            Some(EchoRequest { echo_to_port: 0 }) => drop(self.echoes.to.remove(&session)),
            Some(hello) => {
                self.echoes.connect(&self.back, session, received.sender(), hello.echo_to_port);
            }
            None => self.echoes.echo(session, received.len())?,
        }
        Ok(())
    }
}

/// Connections back to clients that get as many bytes back as they send.
struct Echoes {
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
        let (connected, ready) = mpsc::channel(MAX_ECHOES);
        let memory = Memory::of(args.device.use_cuda)?;
        let payload = Buffer::host(0);
        Ok(Self { memory, payload, to: HashMap::new(), connected, ready })
    }

    /// Starts to connect back to the address of a client, at the port on which it expects echoes.
    fn connect(&self, back: &Back, session: u128, sender: Sender<'_>, port: u16) {
        let client = SocketAddr::new(sender.address().ip(), port);
        if self.to.len() >= MAX_ECHOES {
            return warn!(%client, "the client gets no echoes: {MAX_ECHOES} others get them already");
        }
        // Each connection that is being made has a permit.
        let Ok(permit) = self.connected.clone().try_reserve_owned() else {
            return warn!(%client, "the client gets no echoes: too many clients ask for them at once");
        };
        let connector = match back.connector(sender.certificate_names()) {
            Ok(connector) => connector,
            Err(error) => {
                return warn!(%client, "the client gets no echoes: {error}; give a name of its certificate by --tls-name");
            }
        };
        tokio::spawn(async move {
            match back::connect(&connector, client).await {
                Ok(peers) => {
                    info!(%client, "echoes");
                    permit.send((session, peers));
                }
                Err(error) => warn!(%client, "the client gets no echoes: {error}"),
            }
        });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_of_a_service_are_the_same_on_all_networks() {
        let service = "train.vision.svc.multinet";
        assert_eq!([certified(service), certified("rail0._net.train.vision.svc.multinet")], [service; 2]);
    }
}
