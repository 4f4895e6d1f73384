//! Tests with mutual TLS.

use multinet_testing::pki::{Certificate, FileAuthority};
use tempfile::TempDir;

use super::support::{Says, Server, reference, run, text};

const SERVER: &str = "server.test";

/// Certificates for both sides.
struct Files {
    _folder: TempDir,
    authority: FileAuthority,
}

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = FileAuthority::new(folder.path()).unwrap();
        Self { _folder: folder, authority }
    }

    fn flags(&self, name: &str) -> Vec<String> {
        let Certificate { cert, key } = self.authority.server(name).unwrap();
        let files = [("--tls-cert", cert), ("--tls-key", key), ("--tls-ca", self.authority.ca())];
        files.into_iter().flat_map(|(flag, file)| [flag.to_owned(), file.display().to_string()]).collect()
    }
}

fn with<'a>(arguments: &[&'a str], flags: &'a [String]) -> Vec<&'a str> {
    arguments.iter().copied().chain(flags.iter().map(String::as_str)).collect()
}

/// The server connects back, and expects the certificate that the client has shown.
#[test]
fn echoes_go_to_the_client_that_the_messages_came_from() {
    let files = Files::new();
    let (ours, theirs) = (files.flags("client.test"), files.flags(SERVER));
    let server = Server::start(&with(&["bench", "server"], &theirs), 0, Says::Stdout);
    let address = server.address.to_string();
    let client = ["bench", "client", &address, "--latency", "-n", "20", "-s", "64", "--tls-name", SERVER];
    let output = run(&with(&client, &ours), b"");
    assert_eq!(text(&output.stderr), "");
    assert!(output.status.success());
    server.interrupt();
    assert_eq!(text(&server.output().stderr), "");
}

#[test]
fn only_a_peer_with_a_trusted_certificate_fetches() {
    let (files, others) = (Files::new(), Files::new());
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "content").unwrap();
    let arguments = ["put", file.path().to_str().unwrap(), "--id", "file"];
    let put = Server::start(&with(&arguments, &files.flags(SERVER)), 0, Says::Stderr);
    let address = put.address.to_string();
    let get = ["get", &address, &reference("file"), "--tls-name", SERVER, "--wait", "5"];
    let trust = ["--tls-ca".to_owned(), files.authority.ca().display().to_string()];
    let strange = [&others.flags("client.test")[..4], &trust].concat();
    let refused = run(&with(&get, &strange), b"");
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("the peer refuses: our certificate "), "{said}");
    // Without TLS, it does not even hear the reference.
    let plain = run(&["get", &address, &reference("file"), "--wait", "1"], b"");
    assert_eq!((plain.status.code(), plain.stdout.len()), (Some(1), 0), "{plain:?}");
    let fetched = run(&with(&get, &files.flags("client.test")), b"");
    assert_eq!((fetched.status.code(), text(&fetched.stdout)), (Some(0), "content"), "{fetched:?}");
    assert!(put.output().status.success());
}

#[test]
fn an_address_without_a_name_is_not_waited_for() {
    let flags = Files::new().flags("client.test");
    for command in
        [&["send", "127.0.0.1:9"][..], &["get", "127.0.0.1:9", "a/b"], &["bench", "client", "127.0.0.1:9"]]
    {
        let output = run(&with(command, &flags), b"");
        assert_eq!(
            text(&output.stderr),
            "multinet: no certificate is for an address: say by --tls-name what that of 127.0.0.1 is for\n"
        );
        assert_eq!(output.status.code(), Some(2));
    }
}

/// Either side may refuse it.
#[test]
fn a_certificate_that_is_refused_is_not_waited_for() {
    let (files, others) = (Files::new(), Files::new());
    let (trusted, strange) = (files.flags(SERVER), others.flags("client.test"));
    let server = Server::start(&with(&["bench", "server"], &trusted), 0, Says::Stdout);
    let address = server.address.to_string();
    let trust = ["--tls-ca".to_owned(), files.authority.ca().display().to_string()];
    let only_ours = [&strange[..4], &trust].concat();
    for (flags, reason) in [
        (&strange, "the peer's certificate (for server.test) "),
        (&only_ours, "the peer refuses: our certificate "),
    ] {
        let client = ["bench", "client", &address, "--tls-name", SERVER];
        let output = run(&with(&client, flags), b"");
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
        assert!(said.contains("can be connected: ") && said.contains(reason), "{said}");
    }
}
