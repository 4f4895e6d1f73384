//! The outcome of a resolution in which no name led to endpoints. Pure.
//!
//! Each full name that a short name may stand for is either absent (NXDOMAIN, or answered by a
//! wildcard only) or unanswered. The outcome reports both. Its kind depends on whether a service
//! can have the unanswered names:
//!
//! | unanswered names | outcome |
//! |---|---|
//! | none | no such service |
//! | some, which no service can have | no such service, with the unanswered names |
//! | some, of which a service can have one | the failure, with the absent names |
//! | all | the failure |
//!
//! The full name of a service has the label `svc` between its namespace and the zone. So the
//! cluster's "no such service" is reported even if a domain at the end of the search path
//! (`infer.corp.example.com`) is broken. And a failure of multinet's own zone is reported even if
//! the other domains, which know none of its names, answer.

use super::ResolveError;

/// Label of a full name between a service's namespace and the zone.
const SVC: &str = "svc";

/// Collects the outcomes for the full names that `name` may stand for, in the order of
/// `candidates`.
pub(super) struct Verdict<'a> {
    name: &'a str,
    candidates: &'a [String],
    /// Number of full names in `candidates` that have been tried.
    tried: usize,
    absent: Vec<&'a str>,
    failures: Vec<(&'a str, ResolveError)>,
    /// First full name that only a wildcard record answers for. `None` if none is known.
    wildcard: Option<&'a str>,
}

impl<'a> Verdict<'a> {
    pub(super) fn new(name: &'a str, candidates: &'a [String]) -> Self {
        let (absent, failures) = (Vec::new(), Vec::new());
        Self { name, candidates, tried: 0, absent, failures, wildcard: None }
    }

    /// Records that only a wildcard record answers for the next full name.
    pub(super) fn add_wildcard(&mut self) {
        let Some(candidate) = self.advance() else { return };
        self.absent.push(candidate);
        self.wildcard.get_or_insert(candidate);
    }

    /// Notes that the next candidate does not exist, according to `zone`.
    ///
    /// # Errors
    ///
    /// The outcome, if the zone knows the service's part of the name: the other candidates then do
    /// not count.
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
    /// The outcome, if this is the second candidate without any answer: DNS cannot be reached.
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

    /// Returns the error of the whole resolution, given the outcomes so far.
    pub(super) fn outcome(&self) -> ResolveError {
        let failed = self.failures.iter().map(|(candidate, _)| *candidate);
        let untried = self.candidates[self.tried..].iter().map(String::as_str);
        let is_open = failed.chain(untried).any(can_be_service) || self.absent.is_empty();
        // Of equal ones, the first counts.
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

/// Returns whether an error of DNS means that no server answered.
fn is_silence(error: &ResolveError) -> bool {
    matches!(error, ResolveError::Timeout { .. } | ResolveError::Unreachable { .. })
}

/// Returns whether a service, or a name below it, can have this full name.
fn can_be_service(candidate: &str) -> bool {
    let mut labels = candidate.split('.');
    labels.any(|label| label == SVC) && labels.next().is_some()
}

/// Returns whether the zone that denies `candidate` has a part of `name` below the domain of the
/// search path. A top-level domain (`vision.`) does not count: it matches a part of many short
/// names by chance.
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

    /// Outcome for one candidate. `Absent` has the zone that denies it.
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

    /// Returns the verdict on a name whose full names are below each domain; the empty domain is
    /// the name itself.
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

    /// Returns the kind of an outcome, and the domains of the names that it reports as absent and
    /// as unanswered.
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
        // Zone of the names below POD. It is no longer than that domain, so it does not settle the
        // search.
        const ZONE: &str = "multinet.cluster.local";
        let (short, long) = ("infer", "infer.vision.svc.multinet");
        type Case<'a> = (&'a str, &'a [(&'a str, Heard)], &'a str, &'a [&'a str], &'a [&'a str]);
        let cases: [Case<'_>; 16] = [
            (short, &[(POD, Absent(ZONE)), ("", Absent(""))], "no such name", &[POD, ""], &[]),
            // A domain that no service can be in fails, after the zone has answered or before.
            (short, &[(POD, Absent(ZONE)), (NODE, Failed)], "no such name", &[POD], &[NODE]),
            (short, &[(POD, Absent(POD)), ("", Failed)], "no such name", &[POD], &[""]),
            (short, &[(NODE, Failed), (POD, Absent(ZONE))], "no such name", &[POD], &[NODE]),
            (short, &[(NODE, Refused), (POD, Absent(ZONE))], "no such name", &[POD], &[NODE]),
            // The zone of the services fails, whatever the others answer.
            (short, &[(POD, Failed), (NODE, Absent(NODE))], "failure", &[NODE], &[]),
            (short, &[(NODE, Absent(NODE)), (POD, Failed)], "failure", &[NODE], &[]),
            (short, &[(NODE, Absent(NODE)), (POD, Refused)], "refusal", &[NODE], &[]),
            (short, &[(NODE, Failed), (POD, Refused), ("", Absent(""))], "refusal", &[""], &[]),
            (long, &[(CORE, Absent(LAST)), (LAST, Failed), ("", Absent(""))], "failure", &[CORE, ""], &[]),
            // The zone that knows the service's part of the name settles the search.
            (long, &[(CORE, Failed), (LAST, Absent(ZONE))], "no such name", &[LAST], &[CORE]),
            // Two silent names end it; a zone of services may be among those that were not tried.
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
