//! TSIG keys and cookie secrets: read from their files at the start, and again on SIGHUP.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use multinet_runtime::Hangups;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::answer::cookie::CookieSigner;
use crate::config::Args;
use crate::secondary::transfer::allow::AllowedClient;
use crate::secondary::tsig::Keyring;
use crate::store::name::Name;

/// TSIG keys and cookie secrets, with the files that they were read from.
#[derive(Debug, Clone)]
pub(crate) struct Secrets {
    /// TSIG keys of `--tsig-key-file`, among them all that other flags name.
    pub keys: Keyring,
    /// Secrets of DNS cookies: those of the file, or without a file a random one.
    pub cookies: CookieSigner,
    key_file: Option<PathBuf>,
    cookie_file: Option<PathBuf>,
    /// Names of TSIG keys in other flags, each with its flag for error messages.
    named: Arc<[(String, Name)]>,
}

impl Secrets {
    /// Reads the secrets from the files that the flags name.
    pub(crate) fn load(args: &Args) -> Result<Self> {
        let allowed = args.transfer_to.iter().filter_map(|allowed| match allowed {
            AllowedClient::Key(name) => Some((format!("--transfer-to key:{name}"), name.clone())),
            _ => None,
        });
        let notified = args.notify.iter().filter_map(|secondary| {
            let name = secondary.key.as_ref()?;
            Some((format!("--notify {secondary}"), name.clone()))
        });
        let cookies = match &args.cookie_secret_file {
            Some(file) => CookieSigner::load(file)?,
            None => CookieSigner::random()
                .map_err(|error| anyhow!("cannot get random numbers from the system: {error}"))?,
        };
        let mut secrets = Self {
            keys: Keyring::default(),
            cookies,
            key_file: args.tsig_key_file.clone(),
            cookie_file: args.cookie_secret_file.clone(),
            named: allowed.chain(notified).collect(),
        };
        secrets.keys = secrets.load_keys()?;
        Ok(secrets)
    }

    fn load_keys(&self) -> Result<Keyring> {
        let keys = match &self.key_file {
            Some(file) => Keyring::load(file).map_err(|error| anyhow!("--tsig-key-file {error}"))?,
            None => Keyring::default(),
        };
        match self.named.iter().find(|(_, name)| keys.find(name.as_wire()).is_none()) {
            Some((flag, _)) => Err(anyhow!("{flag}: there is no such key; give it in --tsig-key-file")),
            None => Ok(keys),
        }
    }

    /// Reads the files again on every SIGHUP until `shutdown`. If a file cannot be used, the old
    /// secrets stay in use.
    pub(crate) async fn follow(self, mut hangups: Hangups, shutdown: CancellationToken) {
        while shutdown.run_until_cancelled(hangups.next()).await.is_some() {
            let secrets = self.clone();
            // Reading may block, on a network file system even forever.
            let reading = tokio::task::spawn_blocking(move || secrets.reload());
            shutdown.run_until_cancelled(reading).await;
        }
    }

    fn reload(&self) {
        if let Some(file) = &self.key_file {
            match self.load_keys() {
                Ok(keys) => {
                    self.keys.replace_by(&keys);
                    info!(file = %file.display(), "TSIG keys reloaded");
                }
                Err(error) => warn!(%error, "cannot reload the TSIG keys; keeping those in use"),
            }
        }
        if let Some(file) = &self.cookie_file {
            match self.cookies.reload(file) {
                Ok(()) => info!(file = %file.display(), "cookie secrets reloaded"),
                Err(error) => warn!(%error, "cannot reload the cookie secrets; keeping those in use"),
            }
        }
    }
}
