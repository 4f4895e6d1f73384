//! DNS over QUIC (RFC 9250): hickory's transport in front of our answers.
//!
//! hickory terminates the transport and parses; the reply is rendered as for TCP, then handed to hickory as
//! records, because that is what it sends.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hickory_proto::op::{Header, HeaderCounts, Message, Metadata, ResponseCode};
use hickory_proto::serialize::binary::{BinDecodable as _, BinDecoder};
use hickory_server::Server;
use hickory_server::net::runtime::Time;
use hickory_server::server::{Request, RequestHandler, ResponseHandler, ResponseInfo};
use hickory_server::zone_handler::{MessageResponseBuilder, Queries};
use rustls::server::ResolvesServerCert;
use tokio::net::UdpSocket;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};

use crate::engine::{Engine, Handled, Proto, Worker};

/// How long a handshake, a request, or a silence between requests may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Serves one address.
pub struct QuicListener(Server<Handler>);

impl QuicListener {
    /// A listener at a bound socket that does not block. To be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// If the runtime cannot register the socket.
    pub fn new(
        socket: std::net::UdpSocket,
        certificates: Arc<dyn ResolvesServerCert>,
        engine: &Engine,
    ) -> io::Result<Self> {
        let mut server = Server::new(Handler(Mutex::new(engine.worker(Proto::Quic))));
        server.register_quic_listener(UdpSocket::from_std(socket)?, PATIENCE, certificates)?;
        Ok(Self(server))
    }

    /// Serves until `shutdown`, then lets requests under way finish.
    pub async fn run(mut self, shutdown: CancellationToken) {
        shutdown.cancelled().await;
        if let Err(error) = self.0.shutdown_gracefully().await {
            error!(%error, "a DoQ listener ended with an error");
        }
    }
}

struct Handler(Mutex<Worker>);

impl Handler {
    /// The reply as our own paths give it. Zones are not transferred over this transport.
    fn reply(&self, request: &Request) -> Option<Vec<u8>> {
        let mut worker = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
