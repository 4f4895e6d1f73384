//! Wires the parts together. Everything is bound and loaded before anything runs, so that the
//! program either fails at the start with one line, or runs.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::{Result, anyhow};
use multinet_runtime::{Hangups, Page, Program, ProgramSettings, WatchMetrics, page};
use tracing::{info, warn};

use crate::answer::limit::Limiter;
use crate::config::{AnswerOrder, Args, Config};
use crate::limits::process::DEADLINE;
use crate::listeners::Listeners;
use crate::net::engine::{Engine, Settings};
use crate::ops::dnstap::{self, TapMetrics};
use crate::ops::metrics::{self, SourceMetrics, Tallies};
use crate::secondary::notifier::{Notifier, NotifierMetrics};
use crate::secondary::transfer::metrics::TransferMetrics;
use crate::secrets::Secrets;
use crate::source::{self, persist};
use crate::store::answers::{self, Answers};
use crate::store::journal;
use crate::store::reverse::ReverseRanges;
use crate::store::state::State;
use crate::store::zone::{ZoneSettings, Zones};

/// Runs the server until SIGTERM or SIGINT. Returns an error if it cannot start.
pub fn run(args: Args) -> Result<()> {
    let config = Config::new(args)?;
    let settings = ProgramSettings {
        version: env!("CARGO_PKG_VERSION"),
        threads: None,
        lameduck: config.args.lameduck,
        deadline: DEADLINE,
    };
    // The main future may block its thread. Signals and probes are handled on others.
    Program::run(&config.args.program.clone(), settings, |program| serve(config, program))
}

async fn serve(config: Config, mut program: Program) -> Result<()> {
    let Config { source, args, .. } = &config;
    let registry = &mut program.registry;
    let watch_metrics = WatchMetrics::register(registry);
    let (tallies, source_metrics) =
        (Tallies::new(args.debug_top.unwrap_or_default()), SourceMetrics::default());
    let (transfers, notifies) = (TransferMetrics::default(), NotifierMetrics::default());
    let (tap_metrics, latency) = (TapMetrics::default(), metrics::programming_latency());

    // What can fail at once comes first; what takes time comes later.

    // A SIGHUP that arrives while files are loaded is not lost.
    let hangups = Hangups::subscribe();
    let secrets = Secrets::load(args)?;
    if let Some(file) = &args.snapshot {
        persist::check(file)?;
    }
    let listeners = Listeners::bind(&config, source_metrics.connections.clone())?;
    let saved = args.snapshot.as_ref().and_then(|file| persist::load(file, args.snapshot_max_age));
    let serial = answers::first_serial(saved.as_ref().map(|saved| saved.serial));
    let answers = Answers::new(zones(args, &listeners)?, serial);
    let ranges = ReverseRanges::new(args.reverse_range.clone(), args.reverse_exclude.clone());
    let answers = Arc::new(answers.with_reverse_ranges(ranges));
    let observe = latency.clone();
    let state = Arc::new(State::new(answers, args.ttl, move |took| {
        observe.observe(took.as_secs_f64());
    }));
    if !(args.transfer_to.is_empty() && args.notify.is_empty()) {
        state.enable_journal(journal::JournalLimits::default());
    }
    metrics::register(registry, tallies.clone(), &source_metrics, &latency, Arc::clone(&state));
    let of_ours = registry.sub_registry_with_prefix(metrics::PREFIX);
    transfers.register(of_ours);
    notifies.register(of_ours);
    tap_metrics.register(of_ours);
    let described = Arc::clone(&state);
    let mut pages: Vec<(_, Page)> = vec![("/debug/state", page(move || described.describe()))];
    if args.debug_top.is_some() {
        let tallies = tallies.clone();
        pages.push(("/debug/top", page(move || tallies.top())));
    }
    program.serve_admin(pages)?;
    let Program { readiness, shutdown, tasks, .. } = &program;
    let was_restored = saved.is_some();
    if let Some(saved) = saved {
        state.restore(saved);
    }
    let source = source::prepare(source, &state, readiness, &source_metrics, watch_metrics).await?;

    let (tap, tap_writer) = args.dnstap.clone().map(|to| dnstap::tap(to, &tap_metrics)).unzip();
    if args.rate_limit.is_some() && args.rate_limit_exempt.is_empty() {
        warn!(
            "--rate-limit also limits CoreDNS and NodeLocal DNSCache, which forward the queries of many clients; give their networks as --rate-limit-exempt"
        );
    }
    let settings = Settings {
        rotate: args.answer_order == AnswerOrder::Rotate,
        log_queries: args.log_queries,
        transfer_to: args.transfer_to.clone(),
        keys: secrets.keys.clone(),
        transfers,
        udp_payload: args.udp_payload_size,
        limiter: args
            .rate_limit
            .map(|per_second| Arc::new(Limiter::new(per_second, args.rate_limit_exempt.clone()))),
        cookies: secrets.cookies.clone(),
        tap,
    };
    let engine = Engine::new(Arc::clone(&state), settings, tallies);
    let listening: Vec<SocketAddr> = listeners.dns_addresses().collect();
    listeners.serve(&engine, tasks, shutdown)?;
    // The dnstap writer ends when the last engine is dropped.
    drop(engine);
    if let Some(writer) = tap_writer {
        tasks.spawn(writer.run(shutdown.clone()));
    }
    for secondary in &args.notify {
        let notifier = Notifier::new(secondary.clone(), &listening, secrets.keys.clone(), &notifies);
        tasks.spawn(notifier.run(Arc::clone(&state), shutdown.clone()));
    }
    tasks.spawn(secrets.follow(hangups, shutdown.clone()));
    tasks.spawn({
        let (origin, state) = (source.origin(), Arc::clone(&state));
        let (readiness, shutdown) = (readiness.clone(), shutdown.clone());
        async move {
            if shutdown.run_until_cancelled(readiness.until_ready()).await.is_some() {
                log_synced(&state, &origin, was_restored);
            }
        }
    });
    let source = tokio::spawn(source.follow(Arc::clone(&state), shutdown.clone()));
    if let Some(file) = args.snapshot.clone() {
        tasks.spawn(persist::run(file, args.snapshot_max_age, state, source_metrics, shutdown.clone()));
    }
    let failure = async move {
        drop(source.await);
        Err(anyhow!("the source of objects has failed; the log tells why"))
    };
    program.run_until(failure).await
}

/// Logs once what the answers are made of, and which source it came from.
fn log_synced(state: &State, origin: &str, was_restored: bool) {
    let (services, slices, endpoints) = state.sizes();
    let zones: Vec<String> = state.answers().zones().iter().map(|zone| zone.apex().to_string()).collect();
    let version = env!("CARGO_PKG_VERSION");
    let ended = if was_restored { "; the snapshot is no longer used" } else { "" };
    info!(version, services, slices, endpoints, zones = zones.join(","), from = origin, "synced{ended}");
}

fn zones(args: &Args, listeners: &Listeners) -> Result<Zones> {
    let ns_addresses: BTreeSet<IpAddr> = if args.ns_address.is_empty() {
        let listening = listeners.addresses().map(|address| address.ip().to_canonical());
        listening.filter(|address| !address.is_unspecified()).collect()
    } else {
        args.ns_address.iter().copied().collect()
    };
    let settings = ZoneSettings { ttl: args.ttl, ns_addresses };
    Zones::new(args.zone.clone(), &args.reverse_zone, &settings)
        .map(|zones| zones.with_vertices(args.vertex_zone.clone()))
        .ok_or_else(|| anyhow!("--zone: too long, no name fits below it; choose a shorter zone"))
}
