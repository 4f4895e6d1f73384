//! DNS over HTTPS (RFC 8484) and over QUIC (RFC 9250): hickory's transports in front of our answers.
//!
//! hickory terminates the transport and parses; the reply is rendered as for TCP, then handed to
//! hickory as records, because that is what it sends. DNS over TLS is a stream like TCP and needs none
//! of this: see [`crate::tcp`].

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hickory_proto::op::{Header, HeaderCounts, Message, Metadata, ResponseCode};
use hickory_proto::serialize::binary::{BinDecodable as _, BinDecoder};
use hickory_server::Server;
use hickory_server::net::runtime::Time;
use hickory_server::net::xfer::Protocol;
use hickory_server::server::{Request, RequestHandler, ResponseHandler, ResponseInfo};
use hickory_server::zone_handler::{MessageResponseBuilder, Queries};
use rustls::server::ResolvesServerCert;
use tokio::net::{TcpListener, UdpSocket};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};

use crate::engine::{Engine, Handled, Proto, Worker};

/// How long a handshake, a request, or a silence between requests may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Path of DNS queries over HTTPS (RFC 8484 §4.1).
const HTTP_PATH: &str = "/dns-query";

/// Serves DoH and DoQ until told to stop.
pub struct SecureServer(Server<Handler>);

impl SecureServer {
    /// A server without listeners.
    pub fn new(engine: &Engine) -> Self {
        let worker = |proto| Mutex::new(engine.worker(proto));
        Self(Server::new(Handler { https: worker(Proto::Https), quic: worker(Proto::Quic) }))
    }

    /// Adds a DoH listener.
    pub fn listen_https(
        &mut self,
        listener: std::net::TcpListener,
        certificates: Arc<dyn ResolvesServerCert>,
    ) -> anyhow::Result<()> {
        let listener = TcpListener::from_std(listener)?;
        Ok(self.0.register_https_listener(listener, PATIENCE, certificates, None, HTTP_PATH.to_owned())?)
    }

    /// Adds a DoQ listener.
    pub fn listen_quic(
        &mut self,
        socket: std::net::UdpSocket,
        certificates: Arc<dyn ResolvesServerCert>,
    ) -> anyhow::Result<()> {
        let socket = UdpSocket::from_std(socket)?;
        Ok(self.0.register_quic_listener(socket, PATIENCE, certificates)?)
    }

    /// Runs until `shutdown`, then lets requests under way finish.
    pub async fn serve(mut self, shutdown: CancellationToken) {
        shutdown.cancelled().await;
        if let Err(error) = self.0.shutdown_gracefully().await {
            error!(%error, "a DoH or DoQ listener ended with an error");
        }
    }
}

struct Handler {
    https: Mutex<Worker>,
    quic: Mutex<Worker>,
}

impl Handler {
    /// The reply as our own paths give it. Zones are not transferred over these transports.
    fn reply(&self, request: &Request) -> Option<Vec<u8>> {
        let worker = match request.protocol() {
            Protocol::Quic => &self.quic,
            _ => &self.https,
        };
        let mut worker = worker.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = Instant::now();
        let mut reply = Vec::with_capacity(512);
        let handled = worker.answer(request.as_slice(), request.src().ip(), &mut reply);
        worker.took(1, begun.elapsed());
        matches!(handled, Handled::Reply).then_some(reply)
    }
}

#[async_trait::async_trait]
impl RequestHandler for Handler {
    async fn handle_request<R: ResponseHandler, T: Time>(
        &self,
        request: &Request,
        mut response_handle: R,
    ) -> ResponseInfo {
        let mut nothing = Metadata::response_from_request(&request.metadata);
        nothing.response_code = ResponseCode::ServFail;
        let nothing = ResponseInfo::from(Header { metadata: nothing, counts: HeaderCounts::default() });
        let Some(reply) = self.reply(request) else {
            return nothing;
        };
        match resend(&reply, &mut response_handle).await {
            Ok(info) => info,
            Err(error) => {
                debug!(%error, peer = %request.src(), "reply not sent");
                nothing
            }
        }
    }
}

/// Hands an encoded reply to hickory, which encodes it once more.
async fn resend<R: ResponseHandler>(reply: &[u8], response_handle: &mut R) -> anyhow::Result<ResponseInfo> {
    let message = Message::from_vec(reply)?;
    let mut decoder = BinDecoder::new(reply);
    Header::read(&mut decoder)?;
    let queries = Queries::read(&mut decoder, message.queries.len())?;
    let response = MessageResponseBuilder::new(&queries, message.edns.as_ref()).build(
        message.metadata,
        &message.answers,
        &message.authorities,
        &[],
        &message.additionals,
    );
    Ok(response_handle.send_response(response).await?)
}
