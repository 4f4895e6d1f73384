//! Mounted secrets, as the library uses them.

use std::sync::Arc;
use std::time::Duration;

pub(in crate::tls) use multinet_testing::pki::{Authority, Folder, Issued};

use crate::tls::Tls;
use crate::tls::files::{CredentialStore, Files};

/// Mounted secret.
pub(in crate::tls) trait Mounted {
    fn files(&self) -> Files;

    /// Returns a side that checks its files at every handshake.
    fn tls(&self) -> Tls;
}

impl Mounted for Folder {
    fn files(&self) -> Files {
        let [certificate, key, trust] = self.paths();
        Files { certificate, key, trust }
    }

    fn tls(&self) -> Tls {
        let store = CredentialStore::every(Duration::ZERO, Duration::from_secs(60), self.files()).unwrap();
        Tls { store: Arc::new(store), expected: Arc::default() }
    }
}
