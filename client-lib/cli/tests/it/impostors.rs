//! Tests of `multinet get` with pods that offer by hand what is no file of `multinet put`.

use std::net::Ipv4Addr;
use std::process::Output;

use multinet_client::{Frame, Offers};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::support::{host, reference, run, text};

/// Fetches a file into a folder, from a pod that offers this manifest and these chunks. Returns
/// what `multinet get` says, and how many files are in the folder then.
fn get(manifest: &Value, chunks: &[&[u8]]) -> (Output, usize) {
    let runtime = Runtime::new().unwrap();
    let (_offers, address) = runtime.block_on(async {
        let offers = Offers::builder().address(Ipv4Addr::LOCALHOST.into()).port(0).bind().await.unwrap();
        let offer = async |id: &str, frame: Frame| {
            offers.offer(id.parse().unwrap(), frame).await.unwrap();
        };
        offer("file", Frame::new(manifest.to_string().into_bytes()).metadata("multinet put")).await;
        for (number, chunk) in chunks.iter().enumerate() {
            offer(&format!("file.{TOKEN}.{number}"), Frame::new(chunk.to_vec())).await;
        }
        let address = offers.local_addresses()[0];
        (offers, address)
    });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    let line = ["get", &address.to_string(), &reference("file"), "--wait", "1", "-o", path.to_str().unwrap()];
    let output = run(&line, b"");
    (output, std::fs::read_dir(folder.path()).unwrap().count())
}

const TOKEN: &str = "0123456789abcdef";

fn manifest(bytes: u64, chunks: u64, chunk_size: u64) -> Value {
    json!({"bytes": bytes, "chunks": chunks, "chunk_size": chunk_size, "sha256": "ab".repeat(32), "host": host(), "token": TOKEN})
}

#[test]
fn a_manifest_or_a_chunk_that_lies_is_refused_and_nothing_is_left() {
    let mut other_host = manifest(4, 1, 4);
    other_host["host"] = "\u{1b}[31melsewhere\n".into();
    let cases: [(&Value, &[&[u8]], &str); 7] = [
        (&json!("no manifest"), &[], "is not from a multinet put of this version"),
        (&manifest(8, 1, 4), &[b"0123"], "8 bytes are not 1 chunks of 4 bytes"),
        (&manifest(4, 0, 0), &[], "is not from a multinet put of this version"),
        (&other_host, &[], "is gone: only \\u{1b}[31melsewhere "),
        // More than there is, at once and one by one.
        (
            &manifest(u64::MAX, u64::MAX.div_ceil(0xffff_ffff), 0xffff_ffff),
            &[b"0123"],
            "chunk 0 has 4 bytes, not 4294967295",
        ),
        (&manifest(u64::MAX, u64::MAX, 1), &[], "after 0 of 18446744073709551615 bytes"),
        (&manifest(4, 1, 4), &[b"0123"], "the file that came has 4 bytes and the SHA-256 "),
    ];
    for (manifest, chunks, expected) in cases {
        let (output, files) = get(manifest, chunks);
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), files), (Some(1), 0), "{said}");
        assert!(said.contains(expected) && said.lines().count() == 1, "{said} for {expected}");
    }
}
