use clap::Parser;
use multinet_testing::logs::Logs;
use tracing::subscriber::with_default;

use super::*;
use crate::Escaped;

fn logger(format: LogFormat, filter: &str) -> (impl Subscriber + Send + Sync, LogLevel, Logs) {
    let lines = Logs::default();
    let writer = lines.clone();
    let args = LogArgs { log_format: format, log_level: filter.to_owned() };
    let (subscriber, level) = subscriber(&args, false, move || writer.clone()).unwrap();
    (subscriber, level, lines)
}

#[test]
fn the_filter_can_be_changed_while_the_process_runs() {
    let (subscriber, level, lines) = logger(LogFormat::Plain, "info");
    with_default(subscriber, || {
        tracing::debug!("unwanted");
        assert_eq!(lines.take(), "");

        level.clone().set("debug", || tracing::info!("announced")).unwrap();
        assert!(lines.take().contains("announced"));
        assert_eq!(level.current(), "debug");
        tracing::debug!("wanted");
        assert!(lines.take().contains("wanted"));
    });
}

#[test]
fn a_bad_filter_is_refused_in_one_line_and_changes_nothing() {
    let (_subscriber, level, _) = logger(LogFormat::Plain, "info");
    for bad in ["inof", "", "  ", "dns=loud", "warn,verbose", "a=b=c"] {
        let error = level.set(bad, || panic!("{bad}")).unwrap_err().to_string();
        assert!(error.contains(bad) && !error.contains('\n'), "{error}");
        assert_eq!(level.current(), "info");
    }
}

#[test]
fn good_filters() {
    for good in ["off", "WARN", "info,dns=debug", "multinet_dns::udp=trace", "dns[{kind=Pod}]=debug"] {
        assert_eq!(valid_filter(good).unwrap(), good);
    }
}

#[test]
fn libraries_are_quiet_unless_the_filter_names_them() {
    let chatter = || {
        tracing::error!(target: "kube_client::client::builder", "a failure");
        tracing::warn!(target: "kube_client::client", "an answer");
        tracing::warn!(target: "kube_client::config", "an override");
    };
    let said = |filter: &str| {
        let (subscriber, _, lines) = logger(LogFormat::Plain, filter);
        with_default(subscriber, chatter);
        let lines = lines.take();
        ["a failure", "an answer", "an override"].map(|text| lines.contains(text))
    };
    assert_eq!(said("info"), [false, false, true]);
    assert_eq!(said("info,kube_client=error"), [true, false, false]);
}

#[test]
fn foreign_text_stays_in_its_line() {
    let foreign = "name\n2026-11-21T09:00:00Z ERROR forged\r\x1b[2J";
    for format in [LogFormat::Plain, LogFormat::Json] {
        let (subscriber, _, lines) = logger(format, "info");
        with_default(subscriber, || tracing::warn!(object = %Escaped(foreign), "{}", Escaped(foreign)));
        let lines = lines.take();
        assert_eq!(lines.matches('\n').count(), 1, "{lines}");
        assert!(!lines.contains(['\r', '\x1b']), "{lines}");
    }
}

#[test]
fn json_lines_are_flat_objects() {
    let (subscriber, _, lines) = logger(LogFormat::Json, "info");
    with_default(subscriber, || tracing::warn!(kind = "Pod", "gone \"for now\""));
    let line: serde_json::Value = serde_json::from_str(&lines.take()).unwrap();
    assert_eq!(line["level"], "WARN");
    assert_eq!(line["kind"], "Pod");
    assert_eq!(line["message"], "gone \"for now\"");
    assert!(line["timestamp"].is_string());
}

#[test]
fn flags() {
    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        log: LogArgs,
    }
    let parse =
        |args: &[&str]| Program::try_parse_from([&["program"], args].concat()).map(|program| program.log);

    let log = parse(&[]).unwrap();
    assert_eq!((log.log_format, log.log_level.as_str()), (LogFormat::Plain, "info"));
    let log = parse(&["--log-format", "json", "--log-level", "dns=debug"]).unwrap();
    assert_eq!((log.log_format, log.log_level.as_str()), (LogFormat::Json, "dns=debug"));
    let error = parse(&["--log-level", "loud"]).unwrap_err().to_string();
    assert!(error.contains("`loud` is not a level"), "{error}");
}
