//! Mutual TLS from outside: files and names, before any connection.
//!
//! Handshakes are tested beside the code, because it is not public.

use std::fs;
use std::path::PathBuf;

use multinet_client::{Tls, TlsError};
use multinet_testing::pki::{Authority, Folder};

/// Returns a folder with a certificate, its key and its authority.
fn folder() -> Folder {
    let authority = Authority::new();
    Folder::of(&authority.issue(&["infer.test"]), &authority.pem())
}

fn at(folder: &Folder, file: &str) -> PathBuf {
    folder.path().join(file)
}

fn tls(folder: &Folder) -> Result<Tls, TlsError> {
    let [certificate, key, trust] = folder.paths();
    Tls::from_files(certificate, key, trust)
}

#[test]
fn matching_files_are_loaded_without_a_runtime() {
    let tls = tls(&folder()).unwrap();
    let tls = tls.expect("spiffe://cluster.local/ns/vision/*").unwrap().expect("infer.test").unwrap();
    let print = format!("{:?}", tls.clone());
    assert!(print.contains("tls.key") && !print.contains("PRIVATE"), "{print}");
}

#[test]
fn an_unusable_file_is_named_in_the_error() {
    for file in ["tls.crt", "tls.key", "ca.crt"] {
        let folder = folder();
        fs::remove_file(at(&folder, file)).unwrap();
        let missing = tls(&folder).unwrap_err();
        fs::write(at(&folder, file), "nonsense").unwrap();
        for error in [missing, tls(&folder).unwrap_err()] {
            assert!(matches!(&error, TlsError::File { file: named, .. } if *named == at(&folder, file)));
            let text = error.to_string();
            assert!(text.starts_with(&at(&folder, file).display().to_string()), "{text}");
            assert!(text.contains("; ") && !text.contains('\n'), "a remedy, in one line: {text}");
        }
    }
    let (one, other) = (folder(), folder());
    let error = Tls::from_files(at(&one, "tls.crt"), at(&other, "tls.key"), at(&one, "ca.crt")).unwrap_err();
    assert!(error.to_string().contains("is not the key of the certificate in"), "{error}");
}

#[test]
fn an_impossible_name_is_refused() {
    for name in
        ["", "10.1.2.3", "*.test", "https://infer.test", "spiffe://Cluster.local/a", "spiffe://td/*/a"]
    {
        let error = tls(&folder()).unwrap().expect(name).unwrap_err();
        assert!(matches!(&error, TlsError::Name { name: given, .. } if given == name), "{error}");
    }
}

#[test]
fn tls_settings_can_be_sent_between_threads() {
    fn can_be_sent<T: Clone + Send + Sync + 'static>() {}
    can_be_sent::<Tls>();
    can_be_sent::<TlsError>();
}
