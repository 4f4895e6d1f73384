//! Numaflow map function that hands its payload directly to the next vertex.
//!
//! ```text
//!            small messages: order, acknowledgement, watermark
//!   decode ──────────────── Numaflow (ISB) ────────────────> infer
//!      └─────────────────── multinet, second NIC ─────────────┘
//!            the frames themselves
//! ```
//!
//! Numaflow still decides what is processed, acknowledged and repeated. Only the bytes take the
//! direct path. The forwarded message is the frame's id, by which the next vertex finds the frame
//! among those that its own `Listener` has received.
//!
//! A MultiNetworkService with the selector `numaflow.numaproj.io/vertex-name: infer` selects the
//! next vertex's pods. Set `NEXT_VERTEX` to its name, such as `infer.vision.svc.multinet`.

use std::env;
use std::error::Error;

use multinet_client::{Choice, Connector, Delivery, Frame, FrameId, PeerSet};
use numaflow::map::{MapRequest, Mapper, Message, Server};

type Failure = Box<dyn Error + Send + Sync>;

struct Direct {
    peers: PeerSet,
}

impl Direct {
    /// Sends a frame and waits for its acknowledgement. Numaflow counts a message as done when the
    /// map function returns, so the next vertex has to have the frame by then.
    async fn hand_over(&self, frame: Frame) -> Result<FrameId, Failure> {
        let sent = self.peers.send(frame).await?;
        sent.acknowledged().await?;
        Ok(sent.id())
    }
}

#[tonic::async_trait]
impl Mapper for Direct {
    async fn map(&self, input: MapRequest) -> Vec<Message> {
        let key = input.keys.join("/");
        let frame = Frame::new(input.value).key(key).timestamp(input.eventtime.into());
        let id = match self.hand_over(frame).await {
            Ok(id) => id,
            Err(error) => {
                eprintln!("not sent: {error}");
                // Numaflow delivers the message again.
                return vec![Message::message_to_nack(None)];
            }
        };
        vec![Message::new(format!("{:032x}/{}", id.session, id.sequence).into_bytes()).with_keys(input.keys)]
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let next = env::var("NEXT_VERTEX")
        .map_err(|_| "set NEXT_VERTEX to the next vertex's service, such as infer.vision.svc.multinet")?;
    let connector = Connector::builder().delivery(Delivery::AtLeastOnce).choice(Choice::ByKey).build()?;
    // Does not wait for a peer, because the next vertex may be scaled to zero.
    let peers = connector.start(&next, "rdma");
    Server::new(Direct { peers }).start().await
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::Ipv4Addr;

    use chrono::{DateTime, Utc};
    use futures::StreamExt as _;
    use multinet_client::{Endpoint, Listener, Resolver};
    use numaflow::map::{SystemMetadata, UserMetadata};

    use super::*;

    fn request(value: &[u8]) -> MapRequest {
        MapRequest {
            keys: vec!["camera-17".into()],
            value: value.into(),
            watermark: Utc::now(),
            eventtime: DateTime::from_timestamp(1_700_000_000, 0).unwrap(),
            headers: HashMap::new(),
            user_metadata: UserMetadata::new(),
            system_metadata: SystemMetadata::default(),
        }
    }

    #[tokio::test]
    async fn the_payload_goes_to_the_next_vertex_and_its_id_to_numaflow() {
        let next = Listener::builder().address(Ipv4Addr::LOCALHOST.into()).port(0).bind().await.unwrap();
        let resolver = Resolver::builder().servers([([127, 0, 0, 1], 9).into()]).build().unwrap();
        let connector = Connector::builder()
            .delivery(Delivery::AtLeastOnce)
            .choice(Choice::ByKey)
            .resolver(resolver)
            .build()
            .unwrap();
        let endpoints = futures::stream::iter([vec![Endpoint::at(next.local_addresses()[0])]]);
        let direct = Direct {
            peers: connector.follow("infer.vision.svc.multinet", endpoints.chain(futures::stream::pending())),
        };

        let received = tokio::spawn(async move {
            let frame = next.recv().await.unwrap();
            let (id, payload, key) = (frame.id(), frame.bytes().to_vec(), frame.key().to_vec());
            frame.acknowledge();
            // The listener has to stay until the sender has got the acknowledgement.
            (next, id, payload, key)
        });
        let messages = direct.map(request(b"a frame")).await;
        let (_next, id, payload, key) = received.await.unwrap();
        assert_eq!((&payload[..], &key[..]), (&b"a frame"[..], &b"camera-17"[..]));
        let forwarded = String::from_utf8(messages[0].value.clone()).unwrap();
        assert_eq!(forwarded, format!("{:032x}/{}", id.session, id.sequence));
        assert_eq!(messages[0].keys, Some(vec!["camera-17".to_owned()]));
    }
}
