//! Answers to packets that the fast path declines: unusual or malformed queries, signed queries and
//! zone transfers.

use std::net::IpAddr;

use tracing::field::display;
use tracing::info;

use super::{AnsweredQuery, Handled, Shared, Worker};
use crate::answer::cookie::CookieStatus;
use crate::answer::proto::Proto;
use crate::answer::query::{self, Declined, Edns, Query, Question, Rcode, Style};
use crate::answer::slow::{self, PacketAction, TransferKind};
use crate::ops::metrics::PacketEvent;
use crate::secondary::transfer::Transfer;
use crate::secondary::tsig::{self, Signer, TsigRefusal, VerifiedQuery};
use crate::store::answers::Freshness;
use crate::store::rrset::{HEADER, rtype};
use crate::store::zone::Zone;

/// Outcome of a packet that the slow path has handled.
enum Outcome {
    /// A reply with this response code was appended.
    Replied(Rcode),
    /// The caller sends this zone transfer instead of a reply.
    Transfer(Box<Transfer>),
}

impl Worker {
    #[cold]
    pub(super) fn answer_on_slow_path(
        &mut self,
        packet: &[u8],
        declined: Declined,
        peer: IpAddr,
        out: &mut Vec<u8>,
    ) -> Handled {
        self.tally.count(PacketEvent::SlowPath, 1);
        let action = match declined {
            Declined::Question => Some(slow::classify_malformed(packet)),
            Declined::Unusual => slow::classify(packet),
        };
        // edns-tcp-keepalive is forbidden over QUIC; such a packet is treated like one that is no
        // query (RFC 9250 §5.5.2).
        let is_fit =
            |edns: Option<Edns>| self.proto != Proto::Quic || edns.is_none_or(|edns| !edns.keepalive);
        let Some(mut action) = action.filter(|action| is_fit(action.edns())) else {
            self.tally.count(PacketEvent::Ignored, 1);
            return Handled::Ignore;
        };
        let standing = self.complete_edns(action.edns_mut(), peer);
        let opened = matches!(action, PacketAction::Signed(..))
            .then(|| tsig::verify(packet, &self.shared.settings.keys, tsig::now()));
        // A valid signature proves that the client is genuine. A query for a cookie is exempt
        // because a cookie is what clients over the limit need.
        let is_exempt = matches!(action, PacketAction::Cookie(_)) || matches!(opened, Some(Ok(_)));
        if !is_exempt && self.is_over_limit(standing, peer) {
            // A client that has signed its query ignores unsigned replies, so it gets none (RFC
            // 8945 §5.3).
            let question = if opened.is_some() { None } else { Question::read(packet) };
            return self.answer_over_limit(packet, question.as_ref(), action.edns(), peer, out);
        }
        let start = out.len();
        let outcome = match (&action, opened) {
            (PacketAction::Signed(end, edns), Some(opened)) => {
                self.respond_signed(opened, packet, peer, (*end, *edns), out)
            }
            // The server cookie is not ours: reply BADCOOKIE with a fresh cookie (RFC 7873 §5.4).
            (PacketAction::Cookie(edns), _) if standing == Some(CookieStatus::Invalid) => {
                Outcome::Replied(query::render_error(packet, HEADER, Rcode::BadCookie, *edns, out))
            }
            (action, _) => self.respond(packet, peer, action, None, out),
        };
        let (qtype, edns) = (action.qtype(packet), action.edns());
        match outcome {
            Outcome::Transfer(transfer) => {
                self.record_transfer(&AnsweredQuery { peer, packet, qtype, edns, rcode: Rcode::NoError });
                Handled::Transfer(transfer)
            }
            Outcome::Replied(rcode) => {
                self.record(&AnsweredQuery { peer, packet, qtype, edns, rcode }, &out[start..]);
                Handled::Reply
            }
        }
    }

    /// Answers a packet with a TSIG record, which may be invalid, and signs the reply (RFC 8945
    /// §5).
    fn respond_signed(
        &self,
        opened: Result<VerifiedQuery, TsigRefusal>,
        packet: &[u8],
        peer: IpAddr,
        (question_end, edns): (usize, Option<Edns>),
        out: &mut Vec<u8>,
    ) -> Outcome {
        let start = out.len();
        let (mut rcode, signature) = match opened {
            Ok(VerifiedQuery { packet, signer }) => {
                // Without its signature the packet is still a query. If it had a second signature,
                // it is malformed.
                let mut action = slow::classify(&packet).unwrap_or(PacketAction::Error(
                    Rcode::FormErr,
                    question_end,
                    edns,
                ));
                // The EDNS data are those of the signed packet, with the fields of the reply
                // already filled in.
                *action.edns_mut() = edns;
                match self.respond(&packet, peer, &action, Some(&signer), out) {
                    Outcome::Transfer(transfer) => {
                        return Outcome::Transfer(Box::new(transfer.signed(signer)));
                    }
                    Outcome::Replied(rcode) => (rcode, Ok(signer)),
                }
            }
            Err(refusal) => {
                self.shared.settings.transfers.count_tsig_error(refusal.error());
                (query::render_error(packet, question_end, refusal.rcode(), edns, out), Err(refusal))
            }
        };
        let limit = self
            .style_reserving(signature.as_ref().map_or_else(TsigRefusal::tsig_len, Signer::tsig_len))
            .limit(edns);
        // A reply that does not fit beside its signature is sent empty and truncated (RFC 8945
        // §5.3).
        if query::is_truncated(&out[start..]) || out.len() - start > limit {
            out.truncate(start);
            rcode = query::render_truncated(packet, question_end, None, out);
        }
        // The longest question with the longest key name leaves no room for a signature. The client
        // then gets an unsigned reply.
        if out.len() - start <= limit {
            match signature {
                Ok(mut signer) => signer.sign(out, start, tsig::now()),
                Err(refusal) => refusal.append_tsig(out, start, tsig::now()),
            }
        }
        Outcome::Replied(rcode)
    }

    /// Returns the reply style with `signature` bytes kept free for the TSIG record.
    fn style_reserving(&self, signature: usize) -> Style {
        Style { reserve: signature, ..self.style }
    }

    /// Answers a packet that is unsigned, or signed by `signer` with a signature that was verified.
    fn respond(
        &self,
        packet: &[u8],
        peer: IpAddr,
        action: &PacketAction,
        signer: Option<&Signer>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        match action {
            PacketAction::Transfer(query, wanted)
                if self.shared.transfer_server.allows(peer, signer.map(|signer| signer.key().name())) =>
            {
                self.transfer(packet, (peer, signer), query, *wanted, out)
            }
            action => {
                let style = self.style_reserving(signer.map_or(0, Signer::tsig_len));
                Outcome::Replied(slow::reply(&self.answers, style, action, packet, self.turn, out))
            }
        }
    }

    /// Starts a transfer over a stream, or appends an ordinary reply. Over UDP the reply is the
    /// difference if it fits, and otherwise the SOA record, which tells the secondary to retry over
    /// TCP (RFC 1995 §2).
    fn transfer(
        &self,
        packet: &[u8],
        (peer, signer): (IpAddr, Option<&Signer>),
        query: &Query,
        wanted: TransferKind,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let style = self.style_reserving(signer.map_or(0, Signer::tsig_len));
        let question = &query.question;
        let error = |rcode, out| {
            Outcome::Replied(query::render_error(packet, question.end(), rcode, query.edns, out))
        };
        if self.answers.freshness() == Freshness::Unsynced {
            // Like any other query before the first sync: SERVFAIL.
            return Outcome::Replied(query::render(&self.answers, style, query, packet, self.turn, out));
        }
        let is_apex = |zone: &&Zone| zone.apex().as_wire() == question.name();
        let Some(zone) = self.answers.zone_of(question.labels()).filter(is_apex) else {
            return error(Rcode::NotAuth, out);
        };
        if self.answers.freshness() != Freshness::Current {
            return error(Rcode::ServFail, out);
        }
        let Shared { state, transfer_server, .. } = &*self.shared;
        match (self.proto, wanted) {
            (Proto::Tcp | Proto::Tls, _) => {
                let Some((contents, slot)) = transfer_server.begin(state, zone.apex(), wanted) else {
                    return error(Rcode::ServFail, out);
                };
                let (serial, kind) = (contents.version().serial, contents.kind());
                let (peer, key) = (peer.to_canonical(), signer.map(|signer| display(signer.key().name())));
                info!(target: "dns", zone = %zone.apex(), serial, kind, %peer, key, "zone transfer");
                Outcome::Transfer(Box::new(Transfer::new(packet, query, contents, slot)))
            }
            (Proto::Udp, TransferKind::Since(known)) => {
                let room = style.limit(query.edns);
                if let Some(message) =
                    transfer_server.write_datagram(state, zone.apex(), known, room, |contents| {
                        Transfer::new(packet, query, contents, None).within(room)
                    })
                {
                    out.extend_from_slice(&message);
                    return Outcome::Replied(Rcode::NoError);
                }
                let mut soa = *query;
                soa.question.qtype = rtype::SOA;
                Outcome::Replied(query::render(&self.answers, style, &soa, packet, self.turn, out))
            }
            _ => error(Rcode::Refused, out),
        }
    }
}
