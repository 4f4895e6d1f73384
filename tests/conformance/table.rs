//! Golden tables: questions, each with the whole expected reply.
//!
//! ```text
//! $ORIGIN multinet.cluster.local          names without a last dot are relative to this
//! $FLAGS --ns-address 192.0.2.53          flags of the server
//!
//! ; Why this reply is the right one.
//! ? infer.vision.svc A                    one question or several with the same reply
//! ? infer.vision.svc ANY +edns=1232 +do   with options of the query (see `Case::parse`)
//! QUERY NOERROR aa rd                     opcode, response code, flags
//! ANSWER                                  sections that are not listed are empty
//! infer.vision.svc 5 IN A 192.168.111.5
//! ```
//!
//! Every question is sent over UDP and TCP. The order within a section does not matter. `SERIAL`
//! stands for the serial of the SOA record.

use std::collections::HashSet;

use anyhow::{Context, Result, bail, ensure};
use multinet_testing::dns::{AD, CD, DO, Edns, Query, RD, Transport, Z};
use multinet_testing::server::Server;

/// Golden table.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// Origin of relative names, without the last dot.
    pub(crate) origin: String,
    /// Flags of the server.
    pub(crate) flags: String,
    /// Rows of the table.
    pub(crate) cases: Vec<Case>,
}

/// Question with its expected reply.
#[derive(Debug)]
pub(crate) struct Case {
    /// Line of the question in the table.
    pub(crate) line: String,
    /// Query to send.
    pub(crate) query: Query,
    /// Transports to send it over.
    pub(crate) transports: Vec<Transport>,
    /// Expected reply, in the format of [`multinet_testing::dns::Reply::text`].
    pub(crate) reply: String,
}

impl Table {
    /// Parses a table. Rows without a comment, without a question or without a reply are errors.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut table = Self::default();
        for block in text.split("\n\n").map(str::trim).filter(|block| !block.is_empty()) {
            table.add(block).with_context(|| format!("in the rows\n{block}"))?;
        }
        ensure!(!table.cases.is_empty(), "the table has no rows");
        let questions: HashSet<&str> = table.cases.iter().map(|case| case.line.as_str()).collect();
        ensure!(questions.len() == table.cases.len(), "a question appears twice in the table");
        Ok(table)
    }

    fn add(&mut self, block: &str) -> Result<()> {
        let (mut comments, mut questions, mut reply) = (0, Vec::new(), Vec::new());
        let directives = block.lines().all(|line| line.starts_with('$') || line.starts_with(';'));
        for line in block.lines() {
            match line.split_once(' ') {
                _ if line.starts_with(';') => comments += 1,
                Some(("$ORIGIN", origin)) => self.origin = origin.trim().to_owned(),
                Some(("$FLAGS", flags)) => self.flags = flags.trim().to_owned(),
                Some(("?", question)) => questions.push(question.trim()),
                _ => reply.push(line),
            }
        }
        if directives {
            return Ok(());
        }
        ensure!(comments > 0, "no comment gives the reason");
        ensure!(!questions.is_empty() && !reply.is_empty(), "no question, or no reply");
        let reply = normalized(&reply)?;
        for question in questions {
            self.cases.push(Case::parse(question, &self.origin, &reply)?);
        }
        Ok(())
    }
}

impl Case {
    /// Parses `NAME TYPE` and options: `+udp` or `+tcp` for one transport only; `+edns=SIZE`, and
    /// after it `+do`, `+version=N`, `+flags=0xHEX`, `+option=CODE:TEXT`; the flags `+nord`, `+ad`,
    /// `+cd`, `+z`; `+class=N`.
    fn parse(line: &str, origin: &str, reply: &str) -> Result<Self> {
        let mut words = line.split_whitespace();
        let (Some(name), Some(qtype)) = (words.next(), words.next()) else {
            bail!("no name and type: {line}")
        };
        let name = match name {
            "@" => origin.to_owned(),
            name if name.ends_with('.') => name.to_owned(),
            name => format!("{name}.{origin}"),
        };
        let mut query = Query::new(&name, qtype);
        let mut transports = Transport::ALL.to_vec();
        for word in words {
            match word.split_once('=').unwrap_or((word, "")) {
                ("+udp", _) => transports = vec![Transport::Udp],
                ("+tcp", _) => transports = vec![Transport::Tcp],
                ("+edns", size) => query = query.edns(Edns::new(size.parse()?)),
                ("+do" | "+version" | "+flags" | "+option", value) => {
                    let edns = query.edns.take().with_context(|| format!("{word} without +edns"))?;
                    query.edns = Some(with_edns(edns, word, value)?);
                }
                ("+nord", _) => query.flags &= !RD,
                ("+ad", _) => query.flags |= AD,
                ("+cd", _) => query.flags |= CD,
                ("+z", _) => query.flags |= Z,
                ("+class", class) => query.qclass = class.parse()?,
                _ => bail!("unknown option {word}"),
            }
        }
        Ok(Self { line: line.to_owned(), query, transports, reply: reply.to_owned() })
    }

    /// Sends the query. Fails with both texts if the reply differs from the table.
    pub(crate) fn check(&self, server: &Server, origin: &str) -> Result<()> {
        for &transport in &self.transports {
            let reply = transport.ask(server.dns(), &self.query)?.text(origin);
            ensure!(
                reply == self.reply,
                "? {} over {transport:?}\n--- expected\n{}\n--- the server's reply\n{reply}\n",
                self.line,
                self.reply,
            );
        }
        Ok(())
    }

    /// Sends the query in mixed case. Fails if more than the case of names in the reply differs.
    pub(crate) fn check_mixed_case(&self, server: &Server) -> Result<()> {
        let mixed = Transport::Tcp.ask(server.dns(), &self.query.clone().mixed_case())?.raw;
        let plain = Transport::Tcp.ask(server.dns(), &self.query)?.raw;
        ensure!(
            mixed[2..].eq_ignore_ascii_case(&plain[2..]),
            "? {} in mixed case has another reply\n{plain:02x?}\n{mixed:02x?}",
            self.line,
        );
        Ok(())
    }
}

/// Applies the option `word` with this value to an OPT record.
fn with_edns(mut edns: Edns, word: &str, value: &str) -> Result<Edns> {
    if word.starts_with("+option") {
        let (code, data) = value.split_once(':').unwrap_or((value, ""));
        return Ok(edns.option(code.parse()?, data.as_bytes()));
    }
    match value.strip_prefix("0x") {
        Some(flags) => edns.flags |= u16::from_str_radix(flags, 16)?,
        None if value.is_empty() => edns.flags |= DO,
        None => edns.version = value.parse()?,
    }
    Ok(edns)
}

/// Returns the reply with single spaces and sorted sections, in the format of the server's replies.
fn normalized(lines: &[&str]) -> Result<String> {
    const SECTIONS: [&str; 3] = ["ANSWER", "AUTHORITY", "ADDITIONAL"];
    let mut out: Vec<String> = Vec::new();
    let mut section: Vec<String> = Vec::new();
    let mut in_section = false;
    for line in lines {
        let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
        if SECTIONS.contains(&line.as_str()) {
            section.sort_unstable();
            out.append(&mut section);
            out.push(line);
            in_section = true;
        } else if in_section {
            section.push(line);
        } else {
            ensure!(out.len() < 3, "{line:?} is in no section");
            out.push(line);
        }
    }
    section.sort_unstable();
    out.append(&mut section);
    Ok(out.join("\n"))
}
