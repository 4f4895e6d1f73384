//! Mutual TLS from outside: what can be wrong before there is a connection.
//!
//! Handshakes are tested beside the code, which is not public.

use std::fs;
use std::path::PathBuf;

use multinet_client::{Tls, TlsError};
use tempfile::TempDir;

/// A folder with a certificate of its own authority.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let issued = rcgen::generate_simple_self_signed(["infer.test".to_owned()]).unwrap();
        let folder = Self(TempDir::new().unwrap());
        fs::write(folder.at("tls.crt"), issued.cert.pem()).unwrap();
        fs::write(folder.at("tls.key"), issued.signing_key.serialize_pem()).unwrap();
        fs::write(folder.at("ca.crt"), issued.cert.pem()).unwrap();
        folder
    }

    fn at(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    fn tls(&self) -> Result<Tls, TlsError> {
        Tls::from_files(self.at("tls.crt"), self.at("tls.key"), self.at("ca.crt"))
    }
}

#[test]
fn files_that_fit_together_are_taken_without_a_runtime() {
    let tls = Folder::new().tls().unwrap();
    let tls = tls.expect("spiffe://cluster.local/ns/vision/*").unwrap().expect("infer.test").unwrap();
    let print = format!("{:?}", tls.clone());
    assert!(print.contains("tls.key") && !print.contains("PRIVATE"), "{print}");
}

#[test]
fn a_file_that_cannot_be_used_is_named() {
    for file in ["tls.crt", "tls.key", "ca.crt"] {
        let folder = Folder::new();
        fs::remove_file(folder.at(file)).unwrap();
        let missing = folder.tls().unwrap_err();
        fs::write(folder.at(file), "nonsense").unwrap();
        for error in [missing, folder.tls().unwrap_err()] {
            assert!(matches!(&error, TlsError::File { file: named, .. } if *named == folder.at(file)));
            let text = error.to_string();
            assert!(text.starts_with(&folder.at(file).display().to_string()), "{text}");
            assert!(text.contains("; ") && !text.contains('\n'), "a remedy, in one line: {text}");
        }
    }
    let (one, other) = (Folder::new(), Folder::new());
    let error = Tls::from_files(one.at("tls.crt"), other.at("tls.key"), one.at("ca.crt")).unwrap_err();
    assert!(error.to_string().contains("is not the key of the certificate in"), "{error}");
}

#[test]
fn a_name_that_nobody_can_have_is_refused() {
    for name in
        ["", "10.1.2.3", "*.test", "https://infer.test", "spiffe://Cluster.local/a", "spiffe://td/*/a"]
    {
        let error = Folder::new().tls().unwrap().expect(name).unwrap_err();
        assert!(matches!(&error, TlsError::Name { name: given, .. } if given == name), "{error}");
    }
}

#[test]
fn it_goes_between_threads() {
    fn goes<T: Clone + Send + Sync + 'static>() {}
    goes::<Tls>();
    goes::<TlsError>();
}
