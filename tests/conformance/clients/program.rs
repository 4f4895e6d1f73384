//! Programs that resolve names by the library of their language, and print lines
//! `KIND NAME<tab>ANSWER`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::process::run;

use crate::clients::{HOSTS, REVERSE, TEXTS, V4, V6, infer, large, set};
use crate::fixtures::{ZONE, name};

/// Question: its kind (`addresses`, `ipv4`, `ipv6`, `canonical`, `name`, `srv`, `txt`), and a name
/// or an address.
pub(super) type Question = (&'static str, String);

/// Questions with all their answers.
pub(super) type Answers = Vec<(Question, BTreeSet<String>)>;

/// Runs a program with these questions. Fails if its answers differ.
pub(super) fn check(program: &mut Command, expected: &Answers) -> Result<()> {
    let said = ask(program, expected.iter().map(|(question, _)| question))?;
    for (question, answers) in expected {
        let said = said.get(question).with_context(|| format!("no answer to {question:?}"))?;
        ensure!(said == answers, "{question:?}: {said:?}, not {answers:?}");
    }
    Ok(())
}

/// Runs a program with these questions. Returns its answers; fails if it prints an answer twice.
pub(super) fn ask<'a>(
    program: &mut Command,
    questions: impl IntoIterator<Item = &'a Question>,
) -> Result<BTreeMap<Question, BTreeSet<String>>> {
    let questions: Vec<&Question> = questions.into_iter().collect();
    program.args(questions.iter().flat_map(|(kind, name)| [*kind, name]));
    let text = run(program)?;
    let mut said: BTreeMap<Question, BTreeSet<String>> = BTreeMap::new();
    for line in text.lines() {
        let (asked, answer) = line.split_once('\t').with_context(|| format!("{program:?} printed {line}"))?;
        let question =
            questions.iter().find(|(kind, name)| asked.strip_prefix(kind) == Some(&format!(" {name}")));
        let question = question.with_context(|| format!("{program:?} answered another question: {line}"))?;
        // IPv6 addresses have several notations.
        let answer = answer.parse().map_or_else(|_| answer.to_owned(), |address: IpAddr| address.to_string());
        let is_new = said.entry((*question).clone()).or_default().insert(answer);
        ensure!(is_new, "{program:?} printed twice: {line}");
    }
    Ok(said)
}

/// Returns all addresses of the service `infer` as the answer for this name of it.
pub(super) fn addresses(name: &str) -> Answers {
    vec![(("addresses", name.to_owned()), set(V4.iter().chain(&V6)))]
}

/// Returns the answers for fully qualified names.
pub(super) fn answers() -> Answers {
    let whole = |host: &str| infer(&format!("{host}."));
    let mut answers = vec![
        (("ipv4", dotted(infer(""))), set(V4)),
        (("ipv6", dotted(infer(""))), set(V6)),
        (("ipv4", format!("InFer.VISION.svc.{ZONE}.")), set(V4)),
        (("ipv6", dotted(infer("infer-1."))), set(["fd20::2"])),
        (("ipv4", dotted(infer("rail0._net."))), set(V4)),
        (("srv", dotted(infer("_rdma._tcp."))), set(HOSTS.map(|host| format!("0 20 18515 {}", whole(host))))),
        // Some libraries join the strings of a record, so that their boundaries are not compared.
        (("txt", dotted(infer("infer-0."))), set(TEXTS.map(|text| text.replace(['"', ' '], "")))),
    ];
    answers.extend(names());
    answers
}

/// Returns the answers for addresses.
pub(super) fn names() -> Answers {
    REVERSE.map(|(address, host)| (("name", address.to_owned()), set([infer(&format!("{host}."))]))).into()
}

/// Returns the addresses of the service `large`.
pub(super) fn all_of_large() -> Answers {
    vec![(("ipv4", dotted(name("large"))), large())]
}

/// Returns a name with its last dot, to which no search path applies.
pub(super) fn dotted(name: String) -> String {
    name + "."
}

/// Errors of a library for questions without an answer.
pub(super) struct Reasons {
    /// Address of a name that does not exist.
    pub(super) no_name: &'static str,
    /// Address of a name that has none of that family.
    pub(super) no_address: &'static str,
    /// SRV or TXT record of a name that does not exist.
    pub(super) no_owner: &'static str,
    /// SRV or TXT record of a name that has none.
    pub(super) no_record: &'static str,
    /// Name of an address that has none.
    pub(super) no_reverse: &'static str,
}

impl Reasons {
    /// Returns the questions with these errors as their answers.
    pub(super) fn answers(&self) -> Answers {
        let Self { no_name, no_address, no_owner, no_record, no_reverse } = *self;
        vec![
            (("ipv4", dotted(name("missing"))), set([no_name])),
            (("ipv6", dotted(name("Missing"))), set([no_name])),
            (("ipv4", dotted(infer("infer-2."))), set([no_name])),
            (("ipv6", dotted(name("large"))), set([no_address])),
            (("srv", dotted(infer("_http._tcp."))), set([no_owner])),
            (("txt", dotted(name("missing"))), set([no_owner])),
            (("txt", dotted(infer(""))), set([no_record])),
            (("srv", dotted(infer("_tcp."))), set([no_record])),
            (("name", "10.20.0.9".to_owned()), set([no_reverse])),
            (("name", "fd20::9".to_owned()), set([no_reverse])),
        ]
    }
}
