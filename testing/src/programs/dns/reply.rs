//! Replies: checked against their queries, and formatted as presentation text.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use hickory_proto::op::Message;
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::rr::{Name, RData, Record};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};

use super::presentation::type_name;

/// Length of a message header, in bytes.
const HEADER: usize = 12;

/// Option code of Extended DNS Errors (RFC 8914 §2).
const EXTENDED_ERROR: u16 = 15;

/// Header flags below the opcode, by their bits in the second word.
const FLAGS: [(u16, &str); 7] =
    [(0x400, "aa"), (0x200, "tc"), (0x100, "rd"), (0x80, "ra"), (0x40, "z"), (0x20, "ad"), (0x10, "cd")];

/// Names of the response codes, by number.
const RCODES: [&str; 17] = [
    "NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED", "YXDOMAIN", "YXRRSET", "NXRRSET",
    "NOTAUTH", "NOTZONE", "RCODE11", "RCODE12", "RCODE13", "RCODE14", "RCODE15", "BADVERS",
];

/// Number of the response code BADCOOKIE (RFC 7873).
const BADCOOKIE: usize = 23;

/// Parsed reply.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Reply in wire format.
    pub raw: Vec<u8>,
    /// Contents of the reply.
    pub message: Message,
}

impl Reply {
    /// Parses the reply to `query`. Checks that it is a reply, that ID and opcode are those of the
    /// query, and that its question is that of the query byte for byte, or absent.
    pub fn to(query: &[u8], raw: Vec<u8>) -> Result<Self> {
        let reply = Self::parse(raw)?;
        let raw = &reply.raw;
        ensure!(raw[..2] == query[..2], "the reply has another ID than the query");
        ensure!((raw[2] ^ query[2]) & 0x78 == 0, "the reply has another opcode than the query");
        if raw[4..6] != [0, 0] {
            ensure!(raw[4..6] == [0, 1], "the reply has more than one question");
            let end = question_end(raw).context("the reply's question cannot be read")?;
            ensure!(
                query.get(HEADER..end) == raw.get(HEADER..end),
                "the question of the reply differs from that of the query"
            );
        }
        Ok(reply)
    }

    /// Parses a message without its query.
    pub fn parse(raw: Vec<u8>) -> Result<Self> {
        ensure!(raw.len() >= HEADER, "{} bytes are too few for a message", raw.len());
        ensure!(raw[2] & 0x80 != 0, "the message is not a reply");
        let mut decoder = BinDecoder::new(&raw);
        let message =
            Message::read(&mut decoder).with_context(|| format!("the reply cannot be read: {raw:02x?}"))?;
        ensure!(decoder.is_empty(), "{} bytes follow the reply", decoder.len());
        Ok(Self { raw, message })
    }

    /// Returns whether the reply has a question.
    pub fn has_question(&self) -> bool {
        self.raw[5] == 1
    }

    /// Returns opcode, response code and flags, as in `QUERY NXDOMAIN aa rd`.
    pub fn header(&self) -> String {
        let word = u16::from_be_bytes([self.raw[2], self.raw[3]]);
        let opcode = match word >> 11 & 0xf {
            0 => "QUERY".to_owned(),
            other => format!("OPCODE{other}"),
        };
        let mut text = format!("{opcode} {}", self.rcode());
        for (bit, flag) in FLAGS {
            if word & bit != 0 {
                let _ = write!(text, " {flag}"); // a String takes all
            }
        }
        text
    }

    /// Returns the name of the response code, including the bits that EDNS adds.
    pub fn rcode(&self) -> String {
        let high = self.message.edns.as_ref().map_or(0, |edns| usize::from(edns.rcode_high()));
        let code = high << 4 | usize::from(self.raw[3] & 0xf);
        match RCODES.get(code) {
            Some(name) => (*name).to_owned(),
            None if code == BADCOOKIE => "BADCOOKIE".to_owned(),
            None => format!("RCODE{code}"),
        }
    }

    /// Returns whether a flag is set, by its lower-case name.
    pub fn has_flag(&self, flag: &str) -> bool {
        self.header().split(' ').any(|word| word == flag)
    }

    /// Returns the OPT record, as in `EDNS 0 1232 do ede=14`, with unknown options by their codes.
    pub fn edns(&self) -> Option<String> {
        let edns = self.message.edns.as_ref()?;
        let mut text = format!("EDNS {} {}", edns.version(), edns.max_payload());
        let flags = edns.flags();
        if flags.dnssec_ok {
            text.push_str(" do");
        }
        if flags.z != 0 {
            let _ = write!(text, " z={:#x}", flags.z); // a String takes all
        }
        for (code, option) in &edns.options().options {
            let code = u16::from(*code);
            let _ = match option {
                EdnsOption::Unknown(_, data) if code == EXTENDED_ERROR && data.len() >= 2 => {
                    write!(text, " ede={}", u16::from_be_bytes([data[0], data[1]]))
                }
                _ => write!(text, " option={code}"),
            };
        }
        Some(text)
    }

    /// Returns the records of the answer section, in the order of the message.
    pub fn answers(&self) -> Vec<String> {
        lines(&self.message.answers, "")
    }

    /// Returns the records of the additional section, in the order of the message, without OPT.
    pub fn additionals(&self) -> Vec<String> {
        lines(&self.message.additionals, "")
    }

    /// Returns the records of the authority section, in the order of the message.
    pub fn authorities(&self) -> Vec<String> {
        lines(&self.message.authorities, "")
    }

    /// Returns the serial of the SOA record in the answer or authority section.
    pub fn serial(&self) -> Option<u32> {
        self.message.answers.iter().chain(&self.message.authorities).find_map(|record| match &record.data {
            RData::SOA(soa) => Some(soa.serial),
            _ => None,
        })
    }

    /// Returns the data of the answer section's records, sorted.
    pub fn data(&self) -> Vec<String> {
        let mut data: Vec<String> =
            self.message.answers.iter().map(|record| rdata(&record.data, "")).collect();
        data.sort_unstable();
        data
    }

    /// Returns the whole reply in presentation format, with each section sorted, and `SERIAL` for
    /// the SOA's serial. Names within `origin` (without the last dot) are relative to it, as in a
    /// zone file.
    pub fn text(&self, origin: &str) -> String {
        let mut text = self.header();
        if let Some(edns) = self.edns() {
            text.push('\n');
            text.push_str(&edns);
        }
        if !self.has_question() {
            text.push_str("\nno question");
        }
        let sections = [
            ("ANSWER", &self.message.answers),
            ("AUTHORITY", &self.message.authorities),
            ("ADDITIONAL", &self.message.additionals),
        ];
        for (title, records) in sections {
            if records.is_empty() {
                continue;
            }
            let mut lines = lines(records, origin);
            lines.sort_unstable();
            text.push('\n');
            text.push_str(title);
            for line in lines {
                text.push('\n');
                text.push_str(&line);
            }
        }
        text
    }
}

/// Returns the end of the question, in which names must not be compressed.
fn question_end(packet: &[u8]) -> Option<usize> {
    let mut at = HEADER;
    loop {
        let length = usize::from(*packet.get(at)?);
        if length > 63 {
            return None;
        }
        at += 1 + length;
        if length == 0 {
            return (at + 4 <= packet.len()).then_some(at + 4);
        }
    }
}

fn lines(records: &[Record], origin: &str) -> Vec<String> {
    records
        .iter()
        .map(|record| {
            let owner = relative(&record.name, origin);
            let rtype = type_name(record.record_type().into());
            format!("{owner} {} {} {rtype} {}", record.ttl, record.dns_class, rdata(&record.data, origin))
        })
        .collect()
}

fn rdata(data: &RData, origin: &str) -> String {
    match data {
        RData::A(address) => address.0.to_string(),
        RData::AAAA(address) => address.0.to_string(),
        RData::NS(name) => relative(&name.0, origin),
        RData::PTR(name) => relative(&name.0, origin),
        RData::SRV(srv) => {
            format!("{} {} {} {}", srv.priority, srv.weight, srv.port, relative(&srv.target, origin))
        }
        RData::SOA(soa) => format!(
            "{} {} SERIAL {} {} {} {}",
            relative(&soa.mname, origin),
            relative(&soa.rname, origin),
            soa.refresh,
            soa.retry,
            soa.expire,
            soa.minimum,
        ),
        RData::HINFO(info) => {
            format!("{:?} {:?}", String::from_utf8_lossy(&info.cpu), String::from_utf8_lossy(&info.os))
        }
        RData::TXT(txt) => {
            let strings: Vec<String> =
                txt.txt_data.iter().map(|text| format!("{:?}", String::from_utf8_lossy(text))).collect();
            strings.join(" ")
        }
        other => other.to_string(),
    }
}

/// Returns a name relative to the origin, with its case; `@` for the origin itself.
fn relative(name: &Name, origin: &str) -> String {
    let text = name.to_ascii();
    let within = text.strip_suffix('.').and_then(|text| text.strip_suffix(origin));
    match within {
        _ if origin.is_empty() => text,
        Some("") => "@".to_owned(),
        Some(below) => below.strip_suffix('.').map(ToOwned::to_owned).unwrap_or(text),
        None => text,
    }
}
