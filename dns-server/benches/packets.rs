//! Cost of each kind of packet for a worker, without sockets and system calls, compared with a good
//! query. No client should cause more work by malformed packets than by queries.

#![expect(clippy::unwrap_used, reason = "a measurement that cannot be set up has failed")]
#![expect(clippy::print_stdout, reason = "a table for the page of benchmarks")]

use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use multinet_dns::answer::limit::Limiter;
use multinet_dns::answer::proto::Proto;
use multinet_dns::net::engine::{Engine, Settings, Worker};
use multinet_dns::ops::dnstap::{self, TapMetrics};
use multinet_dns::ops::metrics::Tallies;
use support::{A, BIG, PEER, SMALL, cookie_signer, option, query, query_with_opt, state};

#[path = "../tests/sockets/support.rs"]
#[expect(dead_code, reason = "most of it is for sockets")]
mod support;

const IXFR: u16 = 251;
const ANY: u16 = 255;
const COOKIE: u16 = 10;
const KEEPALIVE: u16 = 11;

/// How often a packet is answered per round, and the number of rounds, of which the shortest
/// counts.
const TIMES: u32 = 50_000;
const ROUNDS: usize = 7;

fn main() {
    let mut plain = worker(|_| {}, Tallies::default());
    let cookie = option(COOKIE, &[5; 8]);
    let good = measure(&mut plain, &query_with_opt(1, SMALL, A, 1232, &[]));
    println!("### What packets cost\n");
    println!(
        "Time in a worker per packet, without sockets, over that of a good query (A with EDNS, {good} ns).\n"
    );
    println!("| packet | over a good query |\n|---|---|");
    let show = |kind: &str, cost: u128| println!("| {kind} | {:.2} |", cost as f64 / good as f64);
    for (kind, packet) in packets(&cookie) {
        show(kind, measure(&mut plain, &packet));
    }
    let asked = query(1, SMALL, A);
    show("good, with `--debug-top`", measure(&mut worker(|_| {}, Tallies::new(100)), &asked));
    // The collector reads nothing, so nearly all messages are dropped.
    let (tap, _writer) = dnstap::tap("unix:/nowhere".parse().unwrap(), &TapMetrics::default());
    let mut tapped = worker(|settings| settings.tap = Some(tap), Tallies::default());
    show("good, with `--dnstap` and a full queue", measure(&mut tapped, &asked));
    let limiter = Arc::new(Limiter::new(10, Vec::new()));
    let mut limiting = worker(|settings| settings.limiter = Some(limiter), Tallies::default());
    show("over the limit", measure(&mut limiting, &asked));
    show(
        "over the limit, with a client's cookie",
        measure(&mut limiting, &query_with_opt(1, SMALL, A, 1232, &cookie)),
    );
}

fn worker(change: impl FnOnce(&mut Settings), tallies: Tallies) -> Worker {
    let mut settings = Settings::new(cookie_signer());
    change(&mut settings);
    Engine::new(Arc::new(state()), settings, tallies).worker(Proto::Udp)
}

/// Returns the nanoseconds per packet.
fn measure(worker: &mut Worker, packet: &[u8]) -> u128 {
    let mut out = Vec::with_capacity(8192);
    let round = |_| {
        let begun = Instant::now();
        for _ in 0..TIMES {
            out.clear();
            let _ = black_box(worker.answer(black_box(packet), SocketAddr::new(PEER, 53), &mut out));
        }
        begun.elapsed().as_nanos() / u128::from(TIMES)
    };
    (0..ROUNDS).map(round).min().unwrap_or_default()
}

fn packets(cookie: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let opt = |options: &[u8]| query_with_opt(1, SMALL, A, 1232, options);
    let good = query(1, SMALL, A);
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut packet = good.clone();
        change(&mut packet);
        packet
    };
    let counts = |section: usize, count: u8| with(&|packet| packet[5 + 2 * section] = count);
    let strings: &[u8] = &[&[0, 0, 16, 0, 1, 0, 0, 0, 0, 0x0f, 0xa0][..], &[1, b'x'].repeat(2000)].concat();
    let with_strings = |mut packet: Vec<u8>| {
        packet[11] = 1;
        [&packet[..], strings].concat()
    };
    let long: &[u8] = &[&[1, b'a'].repeat(10_000)[..], &[0, 0, 1, 0, 1, 0, 0, 0, 9, 0, 0]].concat();
    let record: &[u8] = &[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 3, 1, 2, 3];
    let name_of_127_labels = [&good[..12], &[1, b'a'].repeat(126), &[0, 0, 1, 0, 1]].concat();
    vec![
        ("good: A without EDNS", good.clone()),
        ("good: A with a client's cookie", opt(cookie)),
        ("good: NXDOMAIN", query(1, "nobody.n.svc.z", A)),
        ("good: NODATA", query(1, SMALL, 28)),
        ("good: truncated", query_with_opt(1, BIG, A, 1232, &[])),
        ("unusual: two options", opt(&[option(3, b""), cookie.to_vec()].concat())),
        ("unusual: edns-tcp-keepalive", opt(&option(KEEPALIVE, &[]))),
        ("unusual: beside a TXT record of 2000 strings", with_strings(good.clone())),
        ("unusual: IXFR beside such a record", with_strings(query(1, "x", IXFR))),
        ("unusual: ANY", query(1, SMALL, ANY)),
        ("unusual: class CH", with(&|packet| *packet.last_mut().unwrap() = 3)),
        ("unusual: EDNS version 1", version_1(opt(&[]))),
        ("unusual: a name of 126 labels", name_of_127_labels),
        ("bad: empty", Vec::new()),
        ("bad: 11 bytes", good[..11].to_vec()),
        ("bad: a reply", with(&|packet| packet[2] |= 0x80)),
        ("bad: opcode 9", with(&|packet| packet[2] |= 9 << 3)),
        ("bad: no question", counts(0, 0)),
        ("bad: two questions", counts(0, 2)),
        ("bad: 255 questions", counts(0, 255)),
        ("bad: cut in the name", good[..20].to_vec()),
        ("bad: cut in the type", good[..good.len() - 1].to_vec()),
        ("bad: a byte too many", [&good[..], &[0]].concat()),
        ("bad: 3000 bytes too many", [&good[..], &[0; 3000]].concat()),
        ("bad: a record promised", counts(3, 1)),
        ("bad: 255 records promised", counts(3, 255)),
        ("bad: an answer in a query", [&counts(1, 1)[..], record].concat()),
        ("bad: 8 answers in a query", [&counts(1, 8)[..], &record.repeat(8)].concat()),
        ("bad: 8 additional records", [&counts(3, 8)[..], &record.repeat(8)].concat()),
        ("bad: a pointer for a name", [&good[..12], &[0xc0, 12, 0, 1, 0, 1]].concat()),
        ("bad: a name of 256 bytes", [&good[..12], &[1; 300][..], &[0, 0, 1, 0, 1]].concat()),
        ("bad: a record with a name of 20000 bytes", [&counts(3, 1)[..], long].concat()),
        ("bad: a cookie of 9 bytes", opt(&option(COOKIE, &[5; 9]))),
        ("bad: an option cut off", opt(&[0, 10, 0, 8, 1])),
        ("bad: two OPT records", two_opts(opt(&[]))),
        ("bad: 500 bytes of 0xff", vec![0xff; 500]),
        ("bad: 500 bytes of 0", vec![0; 500]),
    ]
}

fn version_1(mut packet: Vec<u8>) -> Vec<u8> {
    let at = packet.len() - 5;
    packet[at] = 1;
    packet
}

fn two_opts(mut packet: Vec<u8>) -> Vec<u8> {
    packet.extend_from_within(packet.len() - 11..);
    packet[11] = 2;
    packet
}
