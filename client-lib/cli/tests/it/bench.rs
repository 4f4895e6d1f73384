//! Tests of `multinet bench`.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::process::Output;

use multinet_client::{Connector, Frame, Listener, Resolver};
use serde_json::{Value, json};

use super::support::{Says, Server, run, text};

const BANDWIDTH: &str = " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]";

fn server() -> Server {
    Server::start(&["bench", "server"], 0, Says::Stdout)
}

fn client(server: &Server, arguments: &[&str]) -> Output {
    let address = server.address.to_string();
    let output = run(&[&["bench", "client", &address], arguments].concat(), b"");
    assert_eq!(text(&output.stderr), "", "{arguments:?}");
    assert!(output.status.success());
    output
}

/// Returns the numbers below the header.
fn rows(output: &Output, header: &str) -> Vec<Vec<f64>> {
    let mut lines = text(&output.stdout).lines();
    assert!(lines.any(|line| line == header), "{}", text(&output.stdout));
    let rows = lines.take_while(|line| !line.starts_with('-'));
    rows.map(|row| row.split_whitespace().map(|number| number.parse().unwrap()).collect()).collect()
}

#[test]
fn bandwidth_is_printed_in_perftests_columns() {
    let server = server();
    let output = client(&server, &["-n", "200", "-s", "4096"]);
    let rows = rows(&output, BANDWIDTH);
    let [bytes, iterations, peak, average, rate] = rows[0][..] else { panic!("{rows:?}") };
    assert_eq!((rows.len(), bytes, iterations), (1, 4096.0, 200.0));
    assert!(average > 0.0 && peak >= average && rate > 0.0, "{rows:?}");
    assert!((average - rate * 1e6 * 4096.0 / 1_048_576.0).abs() / average < 0.05, "{rows:?}");
}

#[test]
fn all_sizes_are_measured_beside_another_client() {
    let server = server();
    let other = std::thread::spawn({
        let address = server.address.to_string();
        move || run(&["bench", "client", &address, "-n", "100"], b"")
    });
    let rows = rows(&client(&server, &["-a", "-n", "5"]), BANDWIDTH);
    let sizes: Vec<f64> = rows.iter().map(|row| row[0]).collect();
    let expected: Vec<f64> = (1..=23).map(|power| f64::from(1 << power)).collect();
    assert_eq!(sizes, expected);
    assert!(other.join().unwrap().status.success());
}

#[test]
fn iterations_count_for_each_connection() {
    let server = server();
    let output = client(&server, &["-n", "50", "-q", "4", "-t", "2", "--report_gbits", "-s", "1000"]);
    let rows = rows(&output, &BANDWIDTH.replace("MiB", "Gb"));
    assert_eq!((rows[0][0], rows[0][1]), (1000.0, 200.0));
    assert!(text(&output.stdout).contains(" Connections     : 4 each\tTX depth"), "all had come");
}

#[test]
fn json_is_printed_after_the_duration() {
    let server = server();
    let output = client(&server, &["-D", "1", "-o", "json", "-s", "65536"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let result = &document["results"][0];
    assert_eq!(result["MsgSize"], 65_536);
    let messages = result["n_iterations"].as_f64().unwrap();
    let rate = result["MsgRate"].as_f64().unwrap() * 1e6;
    // The measurement takes the whole second on any machine.
    assert!(messages / rate >= 0.9, "{document}");
    assert_eq!(document["test_info"]["peers"], 1);
}

#[test]
fn latency_is_half_the_time_there_and_back() {
    let server = server();
    let header = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   \
                  99% percentile[usec]   99.9% percentile[usec] ";
    for (arguments, sizes) in [(&["-s", "64"][..], 1), (&["-a"], 23)] {
        let rows = rows(&client(&server, &[&["--latency", "-n", "20"], arguments].concat()), header);
        assert_eq!(rows.len(), sizes);
        for row in &rows {
            let [_, iterations, min, max, typical, average, _, most, _] = row[..] else { panic!("{row:?}") };
            assert!(
                iterations == 20.0 && 0.0 < min && min <= typical && typical <= max && min <= average,
                "{row:?}"
            );
            assert!(most <= max, "{row:?}");
        }
    }
    // The clients have asked for no more echoes, so their ends are no failures.
    server.interrupt();
    let output = server.output();
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn the_server_counts_and_ends_quietly() {
    let server = server();
    client(&server, &["-n", "30", "-s", "100"]);
    client(&server, &["-n", "20", "-s", "100"]);
    server.interrupt();
    let output = server.output();
    assert!(output.status.success());
    assert_eq!(
        (text(&output.stdout), text(&output.stderr)),
        ("52 messages, 5200 bytes\n", ""),
        "with the first message of each client"
    );
}

#[test]
fn a_failure_is_one_line() {
    let server = server();
    let address = server.address.to_string();
    let too_large = run(&["bench", "client", &address, "-s", "9000000", "-n", "5"], b"");
    let two_ports = run(&["bench", "client", &address, "7"], b"");
    let cases = [
        (too_large, 1, "a frame of 9000000 bytes is too large, the peers take 8388608"),
        (two_ports, 2, "two ports for 127.0.0.1"),
    ];
    for (output, code, expected) in cases {
        assert_eq!(output.status.code(), Some(code));
        let said = text(&output.stderr);
        assert!(
            said.starts_with("multinet: ") && said.contains(expected) && said.lines().count() == 1,
            "{said}"
        );
    }
    // Waiting does not cure a peer that speaks another protocol.
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let address_of_stranger = stranger.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = stranger.accept() {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let strange = run(&["bench", "client", &address_of_stranger], b"");
    let said = text(&strange.stderr);
    assert!(strange.status.code() == Some(1) && said.lines().count() == 1, "{said}");
    assert!(said.starts_with("multinet: no peer of 127.0.0.1 can be connected: "), "{said}");

    let both = run(&["bench", "client", &address, "-a", "-D", "1"], b"");
    assert_eq!(both.status.code(), Some(2));
}

/// Most of them are dropped, since an honest asker waits for each answer.
#[tokio::test]
async fn a_thousand_questions_at_once_are_refused_and_others_are_served() {
    let server = server();
    let answers = Listener::builder().address(Ipv4Addr::LOCALHOST.into()).port(0).bind().await.unwrap();
    let port = answers.local_addresses()[0].port();
    let resolver = Resolver::builder().servers(["127.0.0.1:9".parse().unwrap()]).build().unwrap();
    let connector = Connector::builder().resolver(resolver).allow_default_network(true).build().unwrap();
    let (ip, target) = (server.address.ip().to_string(), server.address.port().to_string());
    let peers = connector.connect(&ip, &target).await.unwrap();
    for id in 0..1000 {
        let task = json!({"id": id, "target": "10.0.0.1", "size": u32::MAX, "seconds": u32::MAX});
        let question = json!({"echo_to_port": port, "measure": task}).to_string();
        peers.send(Frame::new("").metadata(question)).await.unwrap();
    }
    let answer = answers.recv().await.unwrap();
    let answer: Value = serde_json::from_slice(answer.metadata()).unwrap();
    assert_eq!(answer["id"], 0);
    let refused = answer["outcome"]["refused"].as_str().unwrap();
    assert_eq!(refused, "this server takes part in no matrix: start it with --matrix SERVICE");
    client(&server, &["-n", "5", "-s", "64"]);
    server.interrupt();
    let said = server.stderr();
    assert!(said.contains("it asks for one before the last has ended"), "{said}");
}

#[test]
fn the_service_of_a_matrix_is_a_name_or_nothing() {
    for wrong in ["a b", "a..b", "10.0.0.1"] {
        let output = run(&["bench", "server", "-p", "0", "--matrix", wrong], b"");
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(2) && said.lines().count() == 1, "{wrong}: {said}");
        assert!(said.contains(wrong), "{said}");
    }
    let server = Server::start(&["bench", "server", "--matrix", ""], 0, Says::Stdout);
    client(&server, &["-n", "5", "-s", "64"]);
}

/// DNS does not tell the addresses, so that there are no members.
#[test]
fn a_server_of_a_matrix_serves_members_only() {
    let server = Server::start(
        &["bench", "server", "--matrix", "train.vision.svc.multinet", "--server", "127.0.0.1:9"],
        0,
        Says::Stdout,
    );
    let output = run(&["send", &server.address.to_string(), "--wait", "1"], b"content");
    let said = text(&output.stderr).lines().last().unwrap().to_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("DNS does not tell the addresses of train.vision.svc.multinet"), "{said}");
}
