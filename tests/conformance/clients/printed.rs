//! Parsing of the output of dig, kdig and drill, which is similar.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::clients::{HOSTS, REVERSE, TEXTS, V4, V6, infer, large, set};
use crate::fixtures::{ZONE, name};

/// Message that a client printed.
#[derive(Debug, Default)]
pub(super) struct Printed {
    /// Name of the response code.
    pub(super) rcode: String,
    /// Names of the flags.
    pub(super) flags: Vec<String>,
    /// Section, owner, type and data of each record.
    records: Vec<[String; 4]>,
}

impl Printed {
    /// Runs a command. Returns the messages in its output, and the output.
    pub(super) fn by(command: &mut Command) -> Result<(Vec<Self>, String)> {
        let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        ensure!(output.status.success(), "{command:?}: {}\n{text}", output.status);
        let messages = text.split("->>HEADER<<-").skip(1).map(Self::parse).collect();
        Ok((messages, text))
    }

    /// Parses one message, beginning after the marker of its header.
    fn parse(text: &str) -> Self {
        let mut printed = Self::default();
        let mut section = String::new();
        for line in text.lines() {
            let word_after = |mark: &str| line.split_once(mark).map(|(_, rest)| words(rest));
            let rcode = word_after("status: ").or_else(|| word_after(" rcode: "));
            if let (true, Some(words)) = (printed.rcode.is_empty(), rcode) {
                printed.rcode = words.first().cloned().unwrap_or_default();
            } else if let Some(flags) = word_after(";; flags: ").or_else(|| word_after(";; Flags: ")) {
                printed.flags = flags.into_iter().take_while(|flag| !flag.starts_with("QUERY")).collect();
            } else if let Some(name) =
                line.strip_prefix(";; ").and_then(|line| line.strip_suffix(" SECTION:"))
            {
                section = name.to_owned();
            } else if !line.starts_with(';') && !line.is_empty() {
                let mut words = line.split_whitespace();
                let mut next = || words.next().unwrap_or_default().to_owned();
                let (owner, _ttl, _class, rtype) = (next(), next(), next(), next());
                let data: Vec<_> = words.collect();
                printed.records.push([section.clone(), owner, rtype, data.join(" ")]);
            }
        }
        printed
    }

    /// Returns the data of the records of this type in a section.
    fn section(&self, name: &str, wanted: &str) -> Vec<&str> {
        let of_type = self.records.iter().filter(|[section, _, rtype, _]| section == name && rtype == wanted);
        of_type.map(|[.., data]| data.as_str()).collect()
    }

    /// Returns the data of the answers of this type. Fails if an answer has another owner or type
    /// than was queried. The case of letters may differ, because kdig and CoreDNS' cache change it.
    pub(super) fn answers(&self, owner: &str, rtype: &str) -> Result<BTreeSet<String>> {
        for record in self.records.iter().filter(|[section, ..]| section == "ANSWER") {
            let owner = format!("{owner}.");
            ensure!(
                record[1].eq_ignore_ascii_case(&owner) && record[2] == rtype,
                "{record:?} answers {owner} {rtype}"
            );
        }
        let answers = self.section("ANSWER", rtype);
        let different = set(&answers);
        ensure!(answers.len() == different.len(), "a repeated record: {answers:?}");
        Ok(different)
    }
}

fn words(text: &str) -> Vec<String> {
    text.split(|c: char| c.is_whitespace() || c == ',' || c == ';')
        .filter(|word| !word.is_empty())
        .map(ToOwned::to_owned)
        .collect()
}

/// Question: name, without the last dot, and type.
pub(super) type Question = (String, &'static str);

/// Function that sends all questions by a client, and returns one message for each.
pub(super) type Ask<'a> = &'a dyn Fn(&[Question]) -> Result<Vec<Printed>>;

/// Returns the questions as words of a command line.
pub(super) fn arguments(questions: &[Question]) -> impl Iterator<Item = &str> {
    questions.iter().flat_map(|(name, rtype)| [name.as_str(), rtype])
}

/// Sends queries of every kind whose answers fit into a datagram of 512 bytes.
pub(super) fn check(ask: Ask<'_>) -> Result<()> {
    let srv = HOSTS.map(|host| format!("0 20 18515 {}.", infer(&format!("{host}."))));
    let mut positive = vec![
        (infer(""), "A", set(V4)),
        (infer(""), "AAAA", set(V6)),
        (format!("InFer.VISION.svc.{ZONE}"), "A", set(V4)),
        (infer("infer-1."), "A", set(["10.20.0.2"])),
        (infer("rail0._net."), "AAAA", set(V6)),
        (infer("_rdma._tcp."), "SRV", set(srv)),
        (infer("infer-0."), "TXT", set(TEXTS)),
        (format!("dns-version.{ZONE}"), "TXT", set(["\"1.1.0\""])),
    ];
    for (address, host) in REVERSE {
        positive.push((reverse(address)?, "PTR", set([format!("{}.", infer(&format!("{host}.")))])));
    }
    let negative = [
        (name("missing"), "A", "NXDOMAIN"),
        (format!("MISSING.vision.svc.{ZONE}"), "AAAA", "NXDOMAIN"),
        (infer("infer-2."), "TXT", "NXDOMAIN"),
        (reverse("10.20.0.9")?, "PTR", "NXDOMAIN"),
        (name("large"), "AAAA", "NOERROR"),
        (infer("_tcp."), "SRV", "NOERROR"),
        (infer(""), "TXT", "NOERROR"),
        (infer(""), "MX", "NOERROR"),
    ];
    let questions = positive.iter().map(|(name, rtype, _)| (name.clone(), *rtype));
    let questions: Vec<_> =
        questions.chain(negative.iter().map(|(name, rtype, _)| (name.clone(), *rtype))).collect();
    let replies = ask(&questions)?;
    ensure!(replies.len() == questions.len(), "{} replies", replies.len());
    for ((name, rtype, expected), reply) in positive.iter().zip(&replies) {
        ensure!(reply.rcode == "NOERROR", "{name} {rtype}: {reply:?}");
        ensure!(reply.answers(name, rtype)? == *expected, "{name} {rtype}: {reply:?}");
        ensure!(!reply.flags.iter().any(|flag| flag == "tc"), "{name} {rtype}: {reply:?}");
    }
    for ((name, rtype, rcode), reply) in negative.iter().zip(&replies[positive.len()..]) {
        ensure!(reply.rcode == *rcode, "{name} {rtype}: {reply:?}");
        ensure!(reply.answers(name, rtype)?.is_empty(), "{name} {rtype}: {reply:?}");
        ensure!(reply.section("AUTHORITY", "SOA").len() == 1, "{name} {rtype}: {reply:?}");
    }
    Ok(())
}

/// Queries the addresses of the service `large`, all of which have to arrive.
pub(super) fn check_large(ask: Ask<'_>) -> Result<()> {
    for reply in ask(&[(name("large"), "A"), (name("large"), "A")])? {
        ensure!(reply.rcode == "NOERROR" && !reply.flags.iter().any(|flag| flag == "tc"), "{reply:?}");
        ensure!(reply.answers(&name("large"), "A")? == large(), "{reply:?}");
    }
    Ok(())
}

/// Queries these addresses without TCP. The truncated reply has to contain some of them.
pub(super) fn check_truncated(ask: Ask<'_>, at_least: usize) -> Result<()> {
    for reply in ask(&[(name("large"), "A")])? {
        ensure!(reply.rcode == "NOERROR" && reply.flags.iter().any(|flag| flag == "tc"), "{reply:?}");
        let addresses = reply.answers(&name("large"), "A")?;
        ensure!(addresses.is_subset(&large()) && addresses.len() >= at_least, "{reply:?}");
    }
    Ok(())
}

/// Queries SRV records, whose reply has to contain the addresses of their targets.
pub(super) fn check_additionals(ask: Ask<'_>) -> Result<()> {
    for reply in ask(&[(infer("_rdma._tcp."), "SRV")])? {
        ensure!(set(reply.section("ADDITIONAL", "A")) == set(V4), "{reply:?}");
        ensure!(set(reply.section("ADDITIONAL", "AAAA")) == set(V6), "{reply:?}");
    }
    Ok(())
}

/// Queries a name in mixed case, which the owners of the answer have to keep.
pub(super) fn check_case(ask: Ask<'_>) -> Result<()> {
    let name = format!("InFer.VISION.svc.{ZONE}");
    for reply in ask(&[(name.clone(), "A")])? {
        let is_kept = |[_, owner, ..]: &[String; 4]| owner.strip_suffix('.') == Some(&name);
        ensure!(reply.answers(&name, "A")? == set(V4) && reply.records.iter().all(is_kept), "{reply:?}");
    }
    Ok(())
}

/// Returns the reverse name of an address.
fn reverse(address: &str) -> Result<String> {
    Ok(match address.parse()? {
        std::net::IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        std::net::IpAddr::V6(v6) => {
            let nibbles: String = v6
                .octets()
                .iter()
                .rev()
                .fold(String::new(), |name, octet| format!("{name}{:x}.{:x}.", octet & 15, octet >> 4));
            format!("{nibbles}ip6.arpa")
        }
    })
}
