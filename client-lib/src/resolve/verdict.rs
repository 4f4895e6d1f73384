//! The outcome of a resolution whose names have led to no endpoints. Pure.
//!
//! Each of the names that a short name may stand for is either absent (NXDOMAIN, or an answer that only a wildcard
//! gives) or unanswered. The outcome tells both facts, and which of them it is depends on where services can be:
//!
//! | unanswered names | outcome |
//! |---|---|
//! | none | no such service |
//! | none that a service can have | no such service, and which names have no answer |
//! | one that a service can have | the failure, and which names do not exist: asking again may help |
//! | all | the failure |
//!
//! A service's full name has the label `svc` between its namespace and the zone. So a broken domain at the end of the
//! search path (`infer.corp.example.com`) does not hide that the cluster knows no such service, and a broken zone of
//! multinet's is not hidden by the domains beside it, which know nothing of its names.

use super::ResolveError;

/// Label between a service's namespace and the zone.
const SVC: &str = "svc";

/// Answers about the names that `name` may stand for.
pub(super) struct Verdict<'a> {
    name: &'a str,
    candidates: &'a [String],
    /// How many of the candidates have been tried.
    tried: usize,
    absent: Vec<&'a str>,
    failures: Vec<(&'a str, ResolveError)>,
    /// The first candidate that only a wildcard answers for.
    wildcard: Option<&'a str>,
}

impl<'a> Verdict<'a> {
    pub(super) fn new(name: &'a str, candidates: &'a [String]) -> Self {
        let (absent, failures) = (Vec::new(), Vec::new());
        Self { name, candidates, tried: 0, absent, failures, wildcard: None }
    }

    /// Notes that the next candidate exists by a wildcard only.
    pub(super) fn add_wildcard(&mut self) {
        let Some(candidate) = self.advance() else { return };
        self.absent.push(candidate);
        self.wildcard.get_or_insert(candidate);
    }

    /// Notes that the next candidate does not exist, as `zone` says.
    ///
    /// # Errors
    ///
    /// The outcome, if the zone knows the service's part of the name: no other candidate counts then.
    pub(super) fn add_absent(&mut self, zone: Option<&str>) -> Result<(), ResolveError> {
        let Some(candidate) = self.advance() else { return Ok(()) };
        self.absent.push(candidate);
        match zone {
            Some(zone) if settles(zone, candidate, self.name) => Err(self.no_such_name()),
            _ => Ok(()),
        }
    }

    /// Notes that DNS fails for the next candidate.
    ///
    /// # Errors
    ///
    /// The outcome, if it is the second one without any answer: DNS is not there.
    pub(super) fn add_failure(&mut self, error: ResolveError) -> Result<(), ResolveError> {
        let Some(candidate) = self.advance() else { return Ok(()) };
        self.failures.push((candidate, error));
        let silent = self.failures.iter().filter(|(_, error)| is_silence(error));
        if silent.count() > 1 { Err(self.outcome()) } else { Ok(()) }
    }

    fn advance(&mut self) -> Option<&'a str> {
        let candidate = self.candidates.get(self.tried)?;
        self.tried += 1;
        Some(candidate)
    }

    /// The outcome, if no other candidate is tried.
    pub(super) fn outcome(&self) -> ResolveError {
        let failed = self.failures.iter().map(|(candidate, _)| *candidate);
        let untried = self.candidates[self.tried..].iter().map(String::as_str);
        let is_open = failed.chain(untried).any(can_be_service) || self.absent.is_empty();
        // Of equals the first.
        let failure = self.failures.iter().min_by_key(|(candidate, error)| {
            (!can_be_service(candidate), matches!(error, ResolveError::Refused { .. }))
        });
        match failure {
            Some((_, failure)) if is_open && self.absent.is_empty() => failure.clone(),
            Some((_, failure)) if is_open => ResolveError::Inconclusive {
                name: self.name.to_owned(),
                absent: self.absent.iter().copied().map(str::to_owned).collect(),
                failure: Box::new(failure.clone()),
            },
            _ => self.no_such_name(),
        }
    }

    fn no_such_name(&self) -> ResolveError {
        ResolveError::NoSuchName {
            name: self.name.to_owned(),
            tried: self.candidates[..self.tried].to_vec(),
            unanswered: self.failures.iter().map(|(candidate, _)| (*candidate).to_owned()).collect(),
            wildcard: self.wildcard.map(str::to_owned),
        }
    }
}

/// Returns whether an error stands for no answer at all.
fn is_silence(error: &ResolveError) -> bool {
    matches!(error, ResolveError::Timeout { .. } | ResolveError::Unreachable { .. })
}

/// Returns whether this can be the full name of a service, or of a part of one.
fn can_be_service(candidate: &str) -> bool {
    let mut labels = candidate.split('.');
    labels.any(|label| label == SVC) && labels.next().is_some()
}

/// Returns whether a zone that says that `candidate` does not exist has part of `name`, and not only the domain of the
/// search path. A top-level domain (`vision.`) has a part of many a short name by chance.
fn settles(zone: &str, candidate: &str, name: &str) -> bool {
    let is_in_zone =
        candidate.strip_suffix(zone).is_some_and(|before| before.is_empty() || before.ends_with('.'));
    match candidate.strip_prefix(name).and_then(|rest| rest.strip_prefix('.')) {
        Some(domain) => is_in_zone && zone.len() > domain.len(),
        None => is_in_zone && zone.contains('.'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer about one candidate: its SOA record's owner, a wildcard's, or a failure.
    #[derive(Clone, Copy)]
    enum Heard {
        Absent(&'static str),
        Wildcard,
        Failed,
        Refused,
        Silent,
    }
    use Heard::{Absent, Failed, Refused, Silent, Wildcard};

    fn failure(heard: Heard, candidate: &str) -> ResolveError {
        let (name, server) = (candidate.to_owned(), "10.96.0.10:53".parse().unwrap());
        match heard {
            Refused => ResolveError::Refused { name, server },
            Silent => ResolveError::Timeout { name, servers: vec![server] },
            _ => ResolveError::ServFail { name, server, code: "Server Failure".to_owned() },
        }
    }

    /// The outcome for a name whose candidates are it below each domain (itself below none).
    fn outcome(name: &str, heard: &[(&str, Heard)]) -> ResolveError {
        let full = |domain: &str| match domain {
            "" => name.to_owned(),
            domain => format!("{name}.{domain}"),
        };
        let candidates: Vec<String> = heard.iter().map(|(domain, _)| full(domain)).collect();
        let mut verdict = Verdict::new(name, &candidates);
        for ((_, heard), candidate) in heard.iter().zip(&candidates) {
            let settled = match heard {
                Absent(zone) => verdict.add_absent(Some(zone)),
                Wildcard => {
                    verdict.add_wildcard();
                    Ok(())
                }
                failed => verdict.add_failure(failure(*failed, candidate)),
            };
            if let Err(error) = settled {
                return error;
            }
        }
        verdict.outcome()
    }

    /// Kind of an outcome, and the domains of the names that it says do not exist, and of those without an answer.
    fn summary(name: &str, error: &ResolveError) -> (&'static str, Vec<String>, Vec<String>) {
        let domains = |names: &[String]| -> Vec<String> {
            let domain = |full: &String| full[name.len()..].trim_start_matches('.').to_owned();
            names.iter().map(domain).collect()
        };
        let kind = |error: &ResolveError| match error {
            ResolveError::ServFail { .. } => "failure",
            ResolveError::Refused { .. } => "refusal",
            ResolveError::Timeout { .. } => "silence",
            _ => "other",
        };
        match error {
            ResolveError::NoSuchName { tried, unanswered, .. } => {
                assert!(error.is_negative(), "{error}");
                let absent: Vec<String> =
                    tried.iter().filter(|full| !unanswered.contains(full)).cloned().collect();
                ("no such name", domains(&absent), domains(unanswered))
            }
            ResolveError::Inconclusive { absent, failure, .. } => {
                assert!(!error.is_negative() && !error.is_permanent(), "{error}");
                (kind(failure), domains(absent), Vec::new())
            }
            error => (kind(error), Vec::new(), Vec::new()),
        }
    }

    #[test]
    fn absent_and_unanswered_names_are_reported_together() {
        const POD: &str = "vision.svc.multinet.cluster.local";
        const CORE: &str = "vision.svc.cluster.local";
        const LAST: &str = "cluster.local";
        const NODE: &str = "corp.example.com";
        // The zone that serves the names below POD: as long as that domain, or shorter, it does not settle anything.
        const ZONE: &str = "multinet.cluster.local";
        let (short, long) = ("infer", "infer.vision.svc.multinet");
        type Case<'a> = (&'a str, &'a [(&'a str, Heard)], &'a str, &'a [&'a str], &'a [&'a str]);
        let cases: [Case<'_>; 16] = [
            (short, &[(POD, Absent(ZONE)), ("", Absent(""))], "no such name", &[POD, ""], &[]),
            // A domain that no service can be in fails after the zone has answered, or before.
            (short, &[(POD, Absent(ZONE)), (NODE, Failed)], "no such name", &[POD], &[NODE]),
            (short, &[(POD, Absent(POD)), ("", Failed)], "no such name", &[POD], &[""]),
            (short, &[(NODE, Failed), (POD, Absent(ZONE))], "no such name", &[POD], &[NODE]),
            (short, &[(NODE, Refused), (POD, Absent(ZONE))], "no such name", &[POD], &[NODE]),
            // The zone of services itself fails, whatever the others say.
            (short, &[(POD, Failed), (NODE, Absent(NODE))], "failure", &[NODE], &[]),
            (short, &[(NODE, Absent(NODE)), (POD, Failed)], "failure", &[NODE], &[]),
            (short, &[(NODE, Absent(NODE)), (POD, Refused)], "refusal", &[NODE], &[]),
            (short, &[(NODE, Failed), (POD, Refused), ("", Absent(""))], "refusal", &[""], &[]),
            (long, &[(CORE, Absent(LAST)), (LAST, Failed), ("", Absent(""))], "failure", &[CORE, ""], &[]),
            // The zone that knows the service's part of the name has the last word.
            (long, &[(CORE, Failed), (LAST, Absent(ZONE))], "no such name", &[LAST], &[CORE]),
            // Two that are silent end it, and a zone of services may be among those that were not tried.
            (short, &[(NODE, Silent), ("x", Silent), (POD, Absent(ZONE))], "silence", &[], &[]),
            (
                short,
                &[("y", Absent("y")), (NODE, Silent), ("x", Silent), (POD, Failed)],
                "silence",
                &["y"],
                &[],
            ),
            (
                short,
                &[(POD, Absent(ZONE)), (NODE, Silent), ("", Silent)],
                "no such name",
                &[POD],
                &[NODE, ""],
            ),
            (short, &[(NODE, Wildcard), ("", Failed)], "no such name", &[NODE], &[""]),
            (short, &[(NODE, Refused), ("", Failed)], "failure", &[], &[]),
        ];
        for (number, (name, heard, kind, absent, unanswered)) in cases.into_iter().enumerate() {
            let error = outcome(name, heard);
            let (found, found_absent, found_unanswered) = summary(name, &error);
            assert_eq!(found, kind, "{number}: {error}");
            assert_eq!(found_absent, absent, "{number}: {error}");
            assert_eq!(found_unanswered, unanswered, "{number}: {error}");
        }
    }
}
