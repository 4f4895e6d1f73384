//! A connection to etcd, for the requests that the writer sends: lists and transactions.

mod messages;

use std::fs;
use std::path::{Path, PathBuf};

use http::uri::PathAndQuery;
use prost::Message;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use crate::limits::etcd::{ANSWER, CONNECT_TIME, KEEP_ALIVE, PAGE, REQUEST_TIME};
use crate::store::Change;
use messages::{
    AuthenticateRequest, AuthenticateResponse, Compare, CompareTarget, DeleteRangeRequest, KeyValue,
    PutRequest, RangeRequest, RangeResponse, Request as Operation, RequestOp, TargetUnion, TxnRequest,
    TxnResponse,
};

/// Where etcd is, and how to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdConfig {
    /// URLs of the members, of which one is used at a time.
    pub urls: Vec<String>,
    /// Certificates that etcd's certificate is checked by. Required for `https`.
    pub ca: Option<PathBuf>,
    /// Certificate and key of this client.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Name of the user, and the file with the password.
    pub user: Option<(String, PathBuf)>,
}

/// Reason why a request to etcd failed.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// A file of the configuration cannot be read.
    #[error("{flag} {}: {error}", path.display())]
    File {
        /// The flag that names the file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of reading it.
        error: std::io::Error,
    },
    /// No connection could be made.
    #[error("--etcd {url}: {reason}")]
    Connection {
        /// URL of the member.
        url: String,
        /// The error, with its causes.
        reason: String,
    },
    /// etcd refused the request, or did not answer.
    #[error("--etcd {url}: {}", describe(.status))]
    Request {
        /// URL of the member.
        url: String,
        /// etcd's answer.
        status: Status,
    },
    /// The keys have changed since the transaction was planned.
    #[error("keys were changed by another program")]
    Conflict,
}

/// Describes the failure of a request, with a remedy where there is one.
fn describe(status: &Status) -> String {
    let text = status.message();
    let advice = match status.code() {
        tonic::Code::PermissionDenied => {
            "; give the user of --etcd-user read and write access to the prefix and /multinet/owner"
        }
        tonic::Code::Unauthenticated => "; check --etcd-user and --etcd-password-file",
        _ if text.contains("user name is empty") => "; give --etcd-user and --etcd-password-file",
        _ if text.contains("authentication failed") => "; check --etcd-user and --etcd-password-file",
        _ if text.contains("database space exceeded") => "; compact and defragment etcd, or raise its quota",
        _ => "",
    };
    format!("{text}{advice}")
}

/// Connection to one member of etcd.
#[derive(Debug)]
pub struct Etcd {
    url: String,
    grpc: Grpc<Channel>,
    token: Option<MetadataValue<Ascii>>,
}

impl Etcd {
    /// Connects to the first member that answers, beginning with the one at position `first`.
    pub async fn connect(config: &EtcdConfig, first: usize) -> Result<Self, EtcdError> {
        let mut error = EtcdError::Conflict;
        for at in 0..config.urls.len() {
            let url = &config.urls[(first + at) % config.urls.len()];
            match Self::connect_to(config, url).await {
                Ok(etcd) => return Ok(etcd),
                Err(failed) => error = failed,
            }
        }
        Err(error)
    }

    async fn connect_to(config: &EtcdConfig, url: &str) -> Result<Self, EtcdError> {
        let failed = |error: tonic::transport::Error| EtcdError::Connection {
            url: url.to_owned(),
            reason: with_causes(&error),
        };
        let mut endpoint = Endpoint::from_shared(url.to_owned())
            .map_err(failed)?
            .connect_timeout(CONNECT_TIME)
            .timeout(REQUEST_TIME)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(CONNECT_TIME)
            .keep_alive_while_idle(true);
        if url.starts_with("https://") {
            let mut tls = ClientTlsConfig::new().timeout(CONNECT_TIME);
            if let Some(ca) = &config.ca {
                tls = tls.ca_certificate(Certificate::from_pem(read("--etcd-ca", ca)?));
            }
            if let Some((cert, key)) = &config.identity {
                tls = tls.identity(Identity::from_pem(read("--etcd-cert", cert)?, read("--etcd-key", key)?));
            }
            endpoint = endpoint.tls_config(tls).map_err(failed)?;
        }
        let channel = endpoint.connect().await.map_err(failed)?;
        let grpc = Grpc::new(channel).max_decoding_message_size(ANSWER);
        let mut etcd = Self { url: url.to_owned(), grpc, token: None };
        if let Some((name, file)) = &config.user {
            let password =
                String::from_utf8_lossy(&read("--etcd-password-file", file)?).trim_end().to_owned();
            let request = AuthenticateRequest { name: name.clone(), password };
            let AuthenticateResponse { token } =
                etcd.call("/etcdserverpb.Auth/Authenticate", request).await?;
            etcd.token = token.parse().ok();
        }
        Ok(etcd)
    }

    /// Returns the value of a key, or `None` if there is no such key.
    pub async fn get(&mut self, key: &str) -> Result<Option<Vec<u8>>, EtcdError> {
        let request = RangeRequest { key: key.into(), ..RangeRequest::default() };
        let RangeResponse { kvs, .. } = self.call("/etcdserverpb.KV/Range", request).await?;
        Ok(kvs.into_iter().next().map(|found| found.value))
    }

    /// Calls `each` with the key, value and revision of every key below `prefix`, which ends in a
    /// slash. All are of one revision of etcd.
    pub async fn list(
        &mut self,
        prefix: &str,
        mut each: impl FnMut(String, Vec<u8>, i64),
    ) -> Result<(), EtcdError> {
        let mut request = first_page(prefix);
        loop {
            let response: RangeResponse = self.call("/etcdserverpb.KV/Range", request.clone()).await?;
            request.turn(&response);
            for KeyValue { key, mod_revision, value } in response.kvs {
                // Keys that are no text are none that DNS could lead to.
                if let Ok(key) = String::from_utf8(key) {
                    each(key, value, mod_revision);
                }
            }
            if !response.more {
                return Ok(());
            }
        }
    }

    /// Changes keys in one transaction, if none of them has changed since it was planned, and
    /// `owner` still has its value. Returns the revision of the change.
    pub async fn change(
        &mut self,
        (owner, name): (&str, &str),
        changes: &[Change],
    ) -> Result<i64, EtcdError> {
        let is_owner = Compare {
            target: CompareTarget::Value.into(),
            key: owner.into(),
            target_union: Some(TargetUnion::Value(name.into())),
        };
        let compare = [is_owner]
            .into_iter()
            .chain(changes.iter().map(|change| unchanged(&change.key, change.revision)));
        let operation = |change: &Change| match &change.value {
            Some(value) => put(&change.key, value),
            None => Operation::Delete(DeleteRangeRequest { key: change.key.as_str().into() }),
        };
        let success = changes.iter().map(operation).map(|request| RequestOp { request: Some(request) });
        self.transaction(compare.collect(), success.collect()).await
    }

    /// Sets a key, if it still has the value `before`; `None` means that there is no such key.
    pub async fn replace(&mut self, key: &str, before: Option<&[u8]>, value: &str) -> Result<(), EtcdError> {
        let compare = match before {
            None => unchanged(key, 0),
            Some(before) => Compare {
                target: CompareTarget::Value.into(),
                key: key.into(),
                target_union: Some(TargetUnion::Value(before.into())),
            },
        };
        let success = RequestOp { request: Some(put(key, value)) };
        self.transaction(vec![compare], vec![success]).await.map(drop)
    }

    async fn transaction(
        &mut self,
        compare: Vec<Compare>,
        success: Vec<RequestOp>,
    ) -> Result<i64, EtcdError> {
        let request = TxnRequest { compare, success };
        let TxnResponse { header, succeeded } = self.call("/etcdserverpb.KV/Txn", request).await?;
        if succeeded { Ok(header.map_or(0, |header| header.revision)) } else { Err(EtcdError::Conflict) }
    }

    async fn call<Q, A>(&mut self, method: &'static str, message: Q) -> Result<A, EtcdError>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let failed = |url: &str, status| EtcdError::Request { url: url.to_owned(), status };
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        if let Err(error) = self.grpc.ready().await {
            return Err(EtcdError::Connection { url: self.url.clone(), reason: with_causes(&error) });
        }
        let path = PathAndQuery::from_static(method);
        let answer = self.grpc.unary(request, path, ProstCodec::<Q, A>::default()).await;
        answer.map(tonic::Response::into_inner).map_err(|status| failed(&self.url, status))
    }
}

/// Returns the request for the first page of all keys below `prefix`, which ends in a slash.
fn first_page(prefix: &str) -> RangeRequest {
    // The byte behind `/` ends the range.
    let range_end = [&prefix.as_bytes()[..prefix.len() - 1], b"0"].concat();
    RangeRequest { key: prefix.into(), range_end, limit: PAGE as i64, revision: 0 } // some hundreds
}

impl RangeRequest {
    /// Goes on to the page behind `response`, at the revision of the first page.
    fn turn(&mut self, response: &RangeResponse) {
        if self.revision == 0 {
            self.revision = response.header.as_ref().map_or(0, |header| header.revision);
        }
        self.key = response.kvs.last().map(|last| [&*last.key, b"\0"].concat()).unwrap_or_default();
    }
}

/// Compares a key's revision; 0 means that there is no such key.
fn unchanged(key: &str, revision: i64) -> Compare {
    Compare {
        target: CompareTarget::Mod.into(),
        key: key.into(),
        target_union: Some(TargetUnion::ModRevision(revision)),
    }
}

fn put(key: &str, value: &str) -> Operation {
    Operation::Put(PutRequest { key: key.into(), value: value.into() })
}

fn read(flag: &'static str, path: &Path) -> Result<Vec<u8>, EtcdError> {
    fs::read(path).map_err(|error| EtcdError::File { flag, path: path.to_owned(), error })
}

/// Returns an error with its causes in one line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string);
    let mut all: Vec<String> = causes.collect();
    all.dedup();
    all.join(": ")
}

#[cfg(test)]
mod tests {
    use super::messages::ResponseHeader;
    use super::*;

    /// The header has the newest revision, also in answers about an older one.
    #[test]
    fn all_pages_are_of_the_first_ones_revision() {
        let page = |key: &str, revision| RangeResponse {
            header: Some(ResponseHeader { revision }),
            kvs: vec![KeyValue { key: key.into(), mod_revision: 1, value: Vec::new() }],
            more: true,
        };
        let mut request = first_page("/skydns/");
        assert_eq!(
            (request.key.as_slice(), request.range_end.as_slice()),
            (&b"/skydns/"[..], &b"/skydns0"[..])
        );
        for (response, next) in
            [(page("/skydns/a", 7), b"/skydns/a\0"), (page("/skydns/b", 9), b"/skydns/b\0")]
        {
            request.turn(&response);
            assert_eq!((request.revision, request.key.as_slice()), (7, &next[..]));
        }
    }
}
