use clap::Parser;
use multinet_testing::logs::Logs;
use tracing::subscriber::with_default;

use super::*;

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
fn valid_filters_are_accepted_as_given() {
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
    let logged = |filter: &str| {
        let (subscriber, _, lines) = logger(LogFormat::Plain, filter);
        with_default(subscriber, chatter);
        let lines = lines.take();
        ["a failure", "an answer", "an override"].map(|text| lines.contains(text))
    };
    assert_eq!(logged("info"), [false, false, true]);
    assert_eq!(logged("info,kube_client=error"), [true, false, false]);
}

#[test]
fn libraries_do_not_log_faults_of_peers_unless_the_filter_names_them() {
    let chatter = || {
        tracing::error!(target: "h2::proto::streams", "provoked");
        tracing::error!(target: "hyper::proto::h1", "provoked");
        tracing::error!(target: "hyper_util::server", "provoked");
        tracing::error!(target: "quinn::connection", "provoked");
        tracing::error!(target: "quinn_proto::connection", "provoked");
        tracing::error!(target: "rustls::common_state", "provoked");
    };
    for (filter, expected) in [("info", 0), ("debug", 0), ("info,h2=warn", 1), ("info,hyper=warn", 2)] {
        let (subscriber, _, lines) = logger(LogFormat::Plain, filter);
        with_default(subscriber, chatter);
        assert_eq!(lines.with("provoked").len(), expected, "{filter}");
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
fn flags_set_format_and_filter() {
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
