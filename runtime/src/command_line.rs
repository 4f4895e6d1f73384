//! Common parts of the binaries' command lines.

use std::fmt::Display;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use k8s_openapi::jiff::SignedDuration;
use multinet_crds::syntax::{DNS_LABEL, DNS_SUBDOMAIN};

/// Returns clap's error about a command line of `program` as one line.
pub fn one_line(error: &clap::Error, program: &str) -> String {
    let text = error.to_string();
    let first: Vec<&str> = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
    format!("{}; see {program} --help", first.join(" ").trim_start_matches("error: "))
}

/// Longest time that a program waits at its end for its last log lines to be written.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Runs `program`: parses its command line and calls `run`. Returns its exit status: 0, or 2 for an
/// error, which is written to standard error as one line.
pub fn main<A: Parser, E: Display>(program: &str, run: impl FnOnce(A) -> Result<(), E>) -> ExitCode {
    let outcome = match A::try_parse() {
        Ok(args) => run(args).map_err(|error| format!("{error:#}")),
        // Help and version are no errors. clap prints them and exits with status 0.
        Err(error) if !error.use_stderr() => error.exit(),
        Err(error) => Err(one_line(&error, program)),
    };
    let code = match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            multinet_stderr::write_line(&format!("{program}: {}", message.replace('\n', " ")));
            ExitCode::from(2)
        }
    };
    multinet_stderr::flush(LAST_LINES);
    code
}

/// Parses a duration on the command line, such as `500ms`.
///
/// # Errors
///
/// A message with examples of valid durations, if `text` is none.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "write a time as 500ms, 5s, 10m or 1h".to_owned();
    let parsed: SignedDuration = text.parse().map_err(|_| wrong())?;
    Duration::try_from(parsed).map_err(|_| wrong())
}

/// Parses the name of a namespace.
///
/// # Errors
///
/// The rule that `text` breaks.
pub fn namespace(text: &str) -> Result<String, String> {
    let is_one = DNS_LABEL.accepts(text);
    is_one.then(|| text.to_owned()).ok_or_else(|| format!("the name of a namespace is {DNS_LABEL}"))
}

/// Parses the name of an object, such as a Lease.
///
/// # Errors
///
/// The rule that `text` breaks.
pub fn object_name(text: &str) -> Result<String, String> {
    let is_one = DNS_SUBDOMAIN.accepts(text);
    is_one.then(|| text.to_owned()).ok_or_else(|| format!("the name of an object is {DNS_SUBDOMAIN}"))
}

/// Parses a zone below which names of `shortest` bytes fit, their last dot included. Returns it in
/// lower case and without a trailing dot.
///
/// # Errors
///
/// The rule that `text` breaks.
pub fn zone(text: &str, shortest: usize) -> Result<String, String> {
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    if !DNS_SUBDOMAIN.accepts(&name) || name.split('.').any(|label| !DNS_LABEL.accepts(label)) {
        return Err(format!("write a zone as {DNS_SUBDOMAIN}"));
    }
    if name.len() + shortest > DNS_SUBDOMAIN.max() {
        return Err("too long, no name fits below it; choose a shorter zone".to_owned());
    }
    Ok(name)
}

/// Checks that no zone lies where another one has names: services below `svc`, and anything in a
/// zone of vertices. Zones are in lower case, all with a trailing dot or all without one.
///
/// # Errors
///
/// A message that names both flags.
pub fn separate_zones(zones: &[String], vertex_zones: &[String]) -> Result<(), String> {
    let flagged = || {
        let zones = zones.iter().map(|zone| (zone, "--zone"));
        zones.chain(vertex_zones.iter().map(|zone| (zone, "--vertex-zone")))
    };
    let services =
        zones.iter().map(|outer| (outer, &["svc.", "dns.", "dns-version."][..], "services of --zone"));
    let vertices = vertex_zones.iter().map(|outer| (outer, &[""][..], "names of --vertex-zone"));
    for (outer, labels, called) in services.chain(vertices) {
        let is_taken = |inner: &str| {
            inner != outer
                && labels.iter().any(|label| format!(".{inner}").ends_with(&format!(".{label}{outer}")))
        };
        if let Some((inner, flag)) = flagged().find(|(inner, _)| is_taken(inner)) {
            return Err(format!(
                "{flag} {inner}: lies among the {called} {outer}; choose zones that do not overlap"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Parser)]
    struct Args {
        #[arg(long, value_parser = duration)]
        time: Duration,
    }

    fn time(text: &str) -> Result<Duration, String> {
        let args = Args::try_parse_from(["program", &format!("--time={text}")]);
        args.map(|args| args.time).map_err(|error| one_line(&error, "program"))
    }

    #[test]
    fn zones_do_not_lie_among_the_names_of_others() {
        let check = |zones: &[&str], vertex_zones: &[&str]| {
            let owned = |zones: &[&str]| zones.iter().map(ToString::to_string).collect::<Vec<_>>();
            separate_zones(&owned(zones), &owned(vertex_zones))
        };
        for (zones, vertex_zones) in
            [(&["a", "b.a", "xsvc.a"][..], &["c", "xc"][..]), (&["a"], &["b.a", "svc.b"])]
        {
            assert_eq!(check(zones, vertex_zones), Ok(()));
        }
        for (zones, vertex_zones, message) in [
            (&["a", "svc.a"][..], &[][..], "--zone svc.a: lies among the services of --zone a;"),
            (&["a"], &["b.svc.a"], "--vertex-zone b.svc.a: lies among the services of --zone a;"),
            (&["a"], &["dns-version.a"], "--vertex-zone dns-version.a: lies among"),
            (&["b.a"], &["a"], "--zone b.a: lies among the names of --vertex-zone a;"),
            (&["z"], &["a", "b.a"], "--vertex-zone b.a: lies among the names of --vertex-zone a;"),
        ] {
            assert!(
                check(zones, vertex_zones).unwrap_err().starts_with(message),
                "{zones:?} {vertex_zones:?}"
            );
        }
    }

    #[test]
    fn zones_are_normalized_and_leave_room_for_names() {
        assert_eq!(zone("Fast.Example.", 8), Ok("fast.example".to_owned()));
        let long = ["x".repeat(60).as_str(); 4].join(".");
        assert_eq!(zone(&long, 253 - long.len()), Ok(long.clone()));
        for (text, shortest, message) in [
            (long.as_str(), 254 - long.len(), "choose a shorter zone"),
            ("a_b", 8, "write a zone as a DNS name"),
            ("", 8, "write a zone as"),
            (".", 8, "write a zone as"),
        ] {
            assert!(zone(text, shortest).unwrap_err().contains(message), "{text}");
        }
    }

    #[test]
    fn durations_have_units_and_errors_show_examples() {
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(time("1h"), Ok(Duration::from_secs(3600)));
        for wrong in ["5", "-1s", "soon", ""] {
            let error = time(wrong).unwrap_err();
            assert!(error.contains("write a time as") || wrong.is_empty(), "{wrong:?}: {error}");
            assert!(error.ends_with("; see program --help") && !error.contains('\n'), "{wrong:?}: {error}");
        }
    }
}
