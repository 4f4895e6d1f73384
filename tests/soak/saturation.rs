//! Mixed queries as fast as the server answers them, with malformed packets in between, while
//! services change. Every answer has to be the old or the new one, and no memory or descriptor may
//! be leaked.

use std::collections::BTreeSet;
use std::fs;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use multinet_testing::dns::Query;
use multinet_testing::server::{Flags, Manifests, Server, eventually};
use multinet_testing::usage::resident_mebibytes;

use crate::{Round, milliseconds, report};

/// Number of services that change.
const CHURNED: usize = 8;

/// Number of endpoints of each version of a service.
const ENDPOINTS: usize = 3;

/// Number of unanswered queries of one thread.
const WINDOW: u16 = 64;

/// Number of threads that send queries.
const ASKERS: usize = 2;

/// Number of queries between two malformed packets.
const RUBBISH_EVERY: u64 = 9;

/// Time after which an unanswered query counts as lost.
const LOST: Duration = Duration::from_millis(500);

/// Returns the share of queries that may be lost, because a socket's buffer is finite and the
/// server sheds queries under overload. In a short round, a single pause of the machine loses more
/// than a thousandth.
fn most_lost(round: Round) -> f64 {
    match round {
        Round::Short => 0.05,
        Round::Full => 0.001,
    }
}

#[test]
fn queries_at_saturation_get_right_answers() -> Result<()> {
    run(Round::Short, 60_000)
}

#[test]
#[ignore = "takes some minutes: make soak"]
fn soak_24_million_queries_get_right_answers() -> Result<()> {
    run(Round::Full, 24_000_000)
}

/// Returns the address of an endpoint of a version of a service.
fn address(service: usize, version: usize, endpoint: usize) -> [u8; 4] {
    [10, service as u8, (version % 2) as u8, endpoint as u8 + 1]
}

fn manifest(service: usize, version: usize) -> String {
    let endpoints: String = (0..ENDPOINTS)
        .map(|endpoint| {
            let [a, b, c, d] = address(service, version, endpoint);
            format!("  - {{addresses: [{a}.{b}.{c}.{d}], hostname: v{}-{endpoint}}}\n", version % 2)
        })
        .collect();
    format!(
        "apiVersion: multinetwork.numaproj.io/v1alpha1\nkind: MultiNetworkService\n\
         metadata: {{name: s{service}, namespace: churn}}\nspec: {{networks: [{{name: rail0}}], ports: [{{name: p, port: 7}}]}}\n\
         ---\napiVersion: multinetwork.numaproj.io/v1alpha1\nkind: MultiNetworkEndpointSlice\n\
         metadata:\n  name: s{service}\n  namespace: churn\n  labels: {{multinetwork.numaproj.io/service-name: s{service}}}\n\
         spec:\n  addressType: IPv4\n  network: {{name: rail0, namespace: churn}}\n  ports: [{{name: p, port: 7}}]\n  endpoints:\n{endpoints}"
    )
}

fn run(round: Round, queries: u64) -> Result<()> {
    let manifests = Manifests::new()?;
    for service in 0..CHURNED {
        manifests.write(&format!("s{service}.yaml"), &manifest(service, 0))?;
    }
    let mut server = Flags::new().start(manifests.path())?;
    let pid = server.process().pid();
    let descriptors = || -> Result<usize> { Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.count()) };
    let open = descriptors()?;

    // A tenth of the queries comes first, so that all buffers are allocated.
    let (_, _) = ask_all(&server, &manifests, queries / 10)?;
    let before = resident_mebibytes(pid)?;
    let begun = Instant::now();
    let (tally, changes) = ask_all(&server, &manifests, queries)?;
    let rate = tally.answers as f64 / begun.elapsed().as_secs_f64();
    let after = resident_mebibytes(pid)?;

    ensure!(tally.lost as f64 <= queries as f64 * most_lost(round), "{} of {queries} lost", tally.lost);
    ensure!(
        round == Round::Short || after <= before * 1.02 + 1.0,
        "memory grew from {before} to {after} MiB"
    );
    // The files that changed last may still be open.
    eventually("no more descriptors than before", || {
        let now = descriptors()?;
        ensure!(now <= open, "{open} descriptors before, {now} after");
        Ok(())
    })?;
    report(
        &format!("{queries} mixed queries at saturation with {changes} changes: a second; wrong; lost"),
        &format!("{rate:.0}; 0; {}", tally.lost),
    )?;
    let mut times = tally.times;
    times.sort_unstable();
    let at = |share: f64| times.get((times.len() as f64 * share) as usize).copied().unwrap_or_default();
    let tail = [0.5, 0.99, 0.999].map(|share| milliseconds(at(share))).join("; ");
    report("latency meanwhile at p50; p99; p99.9", &tail)?;
    report("memory before and after", &format!("{before:.1} and {after:.1} MiB"))
}

#[derive(Debug, Default)]
struct Tally {
    answers: u64,
    lost: u64,
    /// Latencies of one answer in a hundred.
    times: Vec<Duration>,
}

/// Sends this many queries while the services change. Returns the results and the number of
/// changes.
fn ask_all(server: &Server, manifests: &Manifests, queries: u64) -> Result<(Tally, usize)> {
    let done = Arc::<AtomicBool>::default();
    thread::scope(|scope| {
        let askers: Vec<_> =
            (0..ASKERS).map(|_| scope.spawn(|| ask(server, queries / ASKERS as u64))).collect();
        let churner = scope.spawn(|| {
            let mut version = 0;
            while !done.load(Ordering::Relaxed) {
                version += 1;
                let service = version % CHURNED;
                manifests.replace(&format!("s{service}.yaml"), &manifest(service, version / CHURNED))?;
                thread::sleep(Duration::from_millis(20));
            }
            anyhow::Ok(version)
        });
        let mut all = Tally::default();
        let outcomes: Vec<_> = askers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        let changes = churner.join().map_err(|_| anyhow::anyhow!("the churner panicked"))??;
        for outcome in outcomes {
            let tally = outcome.map_err(|_| anyhow::anyhow!("an asker panicked"))??;
            all.answers += tally.answers;
            all.lost += tally.lost;
            all.times.extend(tally.times);
        }
        Ok((all, changes))
    })
}

/// Function that returns whether a reply is right for a service.
type Check = fn(&[u8], usize) -> bool;

/// Question with the check of its answers.
struct Question {
    packet: Vec<u8>,
    check: Check,
    service: usize,
}

/// Sends queries, with at most [`WINDOW`] of them unanswered.
fn ask(server: &Server, queries: u64) -> Result<Tally> {
    let questions = questions()?;
    let rubbish = rubbish(&questions)?;
    let mut socket = connected(server)?;
    let mut tally = Tally::default();
    // Question and time of sending, for each ID in use.
    let mut asked: Vec<Option<(usize, Instant)>> = vec![None; usize::from(WINDOW)];
    let (mut sent, mut under_way) = (0u64, 0u16);
    let mut buffer = [0; 4096];
    while tally.answers + tally.lost < queries {
        for (id, slot) in asked.iter_mut().enumerate().filter(|(_, slot)| slot.is_none()) {
            if sent == queries {
                break;
            }
            let number = (sent as usize).wrapping_mul(7) % questions.len();
            let packet = &questions[number].packet;
            let mut packet = packet.clone();
            packet[..2].copy_from_slice(&(id as u16).to_be_bytes());
            socket.send(&packet)?;
            *slot = Some((number, Instant::now()));
            (sent, under_way) = (sent + 1, under_way + 1);
            if sent % RUBBISH_EVERY == 0 {
                socket.send(&rubbish[(sent / RUBBISH_EVERY) as usize % rubbish.len()])?;
            }
        }
        let Ok(length) = socket.recv(&mut buffer) else {
            tally.lost += u64::from(under_way);
            (asked, under_way) = (vec![None; usize::from(WINDOW)], 0);
            // A late answer must not be taken for that to a later query with the same ID.
            socket = connected(server)?;
            continue;
        };
        let reply = &buffer[..length];
        ensure!(length >= 12 && reply[2] & 0x80 != 0, "not a reply: {reply:?}");
        let id = usize::from(u16::from_be_bytes([reply[0], reply[1]]));
        // Malformed packets have other IDs.
        let Some((number, begun)) = asked.get_mut(id).and_then(Option::take) else { continue };
        let Question { packet, check, service } = &questions[number];
        ensure!(reply.get(12..packet.len()) == Some(&packet[12..]), "the question differs: {reply:?}");
        ensure!(check(reply, *service), "a wrong answer to {packet:?}: {reply:?}");
        (tally.answers, under_way) = (tally.answers + 1, under_way - 1);
        if tally.answers % 100 == 0 {
            tally.times.push(begun.elapsed());
        }
    }
    Ok(tally)
}

fn connected(server: &Server) -> Result<UdpSocket> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(server.dns())?;
    socket.set_read_timeout(Some(LOST))?;
    Ok(socket)
}

fn questions() -> Result<Vec<Question>> {
    let mut questions = Vec::new();
    for service in 0..CHURNED {
        let base = format!("s{service}.churn.svc.multinet.cluster.local");
        let kinds: [(String, &str, Check); 5] = [
            (base.clone(), "A", is_one_version),
            (base.clone(), "AAAA", |reply, _| reply[3] & 15 == 0 && reply[7] == 0 && reply[9] == 1),
            (format!("nobody.{base}"), "A", |reply, _| reply[3] & 15 == 3 && reply[7] == 0 && reply[9] == 1),
            (format!("_p._tcp.{base}"), "SRV", |reply, _| {
                reply[3] & 15 == 0 && usize::from(reply[7]) == ENDPOINTS
            }),
            (format!("rail0._net.{base}"), "A", is_one_version),
        ];
        for (name, qtype, check) in kinds {
            questions.push(Question { packet: Query::new(&name, qtype).to_wire(), check, service });
        }
    }
    Ok(questions)
}

/// Returns whether all addresses belong to one version of the service.
fn is_one_version(reply: &[u8], service: usize) -> bool {
    let records = reply.len().checked_sub(16 * ENDPOINTS).map_or(&[][..], |at| &reply[at..]);
    let seen: BTreeSet<&[u8]> = records.chunks(16).map(|record| &record[12..]).collect();
    let is_version =
        |version| (0..ENDPOINTS).all(|endpoint| seen.contains(&address(service, version, endpoint)[..]));
    reply[3] & 15 == 0 && usize::from(reply[7]) == ENDPOINTS && (is_version(0) || is_version(1))
}

/// Returns malformed packets.
fn rubbish(questions: &[Question]) -> Result<Vec<Vec<u8>>> {
    let good = questions.first().context("no questions")?.packet.clone();
    let with = |change: fn(&mut Vec<u8>)| {
        let mut packet = good.clone();
        packet[..2].copy_from_slice(&[0xff, 0xff]);
        change(&mut packet);
        packet
    };
    Ok(vec![
        with(|packet| packet.truncate(20)),
        with(|packet| packet[2] = 0x28),
        with(|packet| packet[5] = 9),
        with(|packet| packet[12] = 0xc0),
        with(|packet| packet.extend([0; 9])),
        with(|packet| packet[11] = 3),
        with(|packet| packet[2] = 0x80),
        with(|packet| packet.truncate(3)),
    ])
}
