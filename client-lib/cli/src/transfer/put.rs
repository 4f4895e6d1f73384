//! `multinet put`: offers a file until a `multinet get` has it.

use std::borrow::Cow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use clap::Args;
use multinet_client::{Frame, Offer, OfferError, OfferId, Offers};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};
use tracing::warn;

use super::from::{self, FromArgs};
use super::manifest::{MARK, MAX_LENGTH, Manifest, chunk_id, token};
use super::progress::TransferProgress;
use super::source::{self, Part, Source};
use super::{MAX_WAIT, Summary};
use crate::common::{DnsArgs, ListenArgs};
use crate::output::{Usage, print, say};
use crate::signals::Signals;

/// Port on which payloads are offered, unless another is given: that of `Offers`.
pub(super) const DEFAULT_PORT: u16 = 18516;

/// How long peers have to close their connections at the end.
const GOODBYE: Duration = Duration::from_secs(5);

/// Longest id, in bytes. Those of chunks are longer, by a token and a number.
const MAX_ID: usize = 230;

/// Flags of `multinet put`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PutArgs {
    /// File to offer; - is standard input
    #[arg(value_name = "FILE")]
    source: PathBuf,

    /// A second argument, as `multinet send` has it
    #[arg(hide = true)]
    excess: Option<String>,

    /// Id of the file in its reference [default: a random one]
    #[arg(long)]
    id: Option<OfferId>,

    /// Host name in the reference, by which `multinet get` finds this pod: that of its endpoint, or
    /// the pod's name [default: the one that the kernel reports]
    #[arg(long, value_name = "NAME")]
    host: Option<String>,

    /// Port to listen on
    #[arg(short, long, default_value_t = DEFAULT_PORT)]
    port: u16,

    /// Bytes in a frame; no more than the --frame-size of `multinet get`
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    frame_size: u32,

    /// How long to offer the file
    #[arg(long, value_name = "SECONDS", default_value_t = 600,
          value_parser = clap::value_parser!(u64).range(..=MAX_WAIT))]
    wait: u64,

    #[command(flatten)]
    from: FromArgs,

    #[command(flatten)]
    dns: DnsArgs,

    #[command(flatten)]
    listen: ListenArgs,
}

const EXAMPLES: &str = "\
Examples:
  multinet put model.safetensors
  tar -c data | multinet put --id data -
  multinet put model.safetensors --from infer.vision.svc.multinet

The reference is printed when all of the file is on offer: hand it to the program that runs multinet get. The file is \
read into memory, so that it may change or go then. The exit status is 0 only if a multinet get has written all of it, \
and says so; 1 if none has within --wait seconds, or the file has changed while it was read.";

/// Runs `multinet put`.
pub(crate) async fn run(args: PutArgs) -> anyhow::Result<ExitCode> {
    // Before it says that it listens: a program that reads this may send a signal.
    let mut signals = Signals::new()?;
    let id = args.id()?;
    // A named pipe is open when its writer comes.
    let (path, size) = (args.source.clone(), args.frame_size as usize);
    let source = tokio::select! {
        source = spawn_blocking(move || source::open(&path, size)) => source??,
        status = signals.next() => return Ok(status),
    };
    let offers = args.listen().await?;
    let outcome = tokio::select! {
        outcome = args.offer(&offers, &id, source) => outcome,
        status = signals.next() => Ok(status),
    };
    // A peer that does not let go of its connection must not delay the end.
    let _ = timeout(GOODBYE, offers.close()).await;
    outcome
}

impl PutArgs {
    /// Returns the id of the file.
    fn id(&self) -> Result<OfferId, Usage> {
        if let Some(excess) = &self.excess {
            return Err(Usage(format!(
                "{excess:?} is one argument too many: multinet put takes a file alone, and multinet get takes the name of the service"
            )));
        }
        match &self.id {
            Some(id) if id.as_str().len() > MAX_ID => {
                Err(Usage(format!("--id {id} is too long: {MAX_ID} bytes are the most")))
            }
            Some(id) => Ok(id.clone()),
            None => {
                let random = format!("{:032x}", fastrand::u128(..));
                random.parse().map_err(|error| Usage(format!("--id: {error}")))
            }
        }
    }

    async fn listen(&self) -> anyhow::Result<Offers> {
        // This program ends the offers itself, all of them at once.
        let forever = Duration::from_secs(MAX_WAIT);
        let mut offers = self.listen.offers()?.port(self.port).deadline(forever);
        if let Some(host) = &self.host {
            offers = offers.host(host);
        }
        if let Some(admits) = from::admission(&self.from.from, &self.dns, "fetch")? {
            offers = offers.admit(admits);
        }
        let offers = offers.bind().await?;
        for address in offers.local_addresses() {
            say(&format!("listening on {address}"));
        }
        match (self.listen.tls.is_on(), self.from.from.is_empty()) {
            (true, _) => {}
            (false, true) => warn!(
                "without TLS any client that reaches this port and knows the reference may fetch the file, and hosts on the way may \
                 read and change it: give both sides --tls-cert, --tls-key and --tls-ca; --from limits only the fetchers"
            ),
            (false, false) => warn!(
                "without TLS hosts on the way may read and change the file, and forge the addresses of --from: give both sides \
                 --tls-cert, --tls-key and --tls-ca"
            ),
        }
        Ok(offers)
    }

    /// Offers the file, and prints its reference. Completes when a peer has acknowledged it.
    async fn offer(&self, offers: &Offers, id: &OfferId, source: Source) -> anyhow::Result<ExitCode> {
        let budget = (offers.statistics().budget as u64).saturating_sub(MAX_LENGTH as u64);
        if let Some(total) = source.total {
            self.fits(total, budget)?;
        }
        let token = token();
        let summary = self.offer_chunks(offers, (id, &token), source, budget).await?;
        let manifest = Manifest::new(&summary, self.frame_size, offers.host(), token);
        let frame = Frame::new(manifest.encode()).metadata(MARK);
        let not_offered = |error| self.not_offered(error);
        let end = offers.offer(manifest.end_id(id).parse()?, "").await.map_err(not_offered)?;
        let offer = offers.offer(id.clone(), frame).await.map_err(not_offered)?;
        let Summary { bytes, sha256 } = summary;
        say(&format!("offered {bytes} bytes, SHA-256 {sha256}"));
        print(&format!("{}\n", offer.reference()))?;
        self.taken(&offer).await?;
        // The peer has the file, whether it hears that this process knows so or not.
        let _ = timeout(GOODBYE, end.taken()).await;
        Ok(ExitCode::SUCCESS)
    }

    /// Offers all chunks of the file. Returns its size and checksum.
    async fn offer_chunks(
        &self,
        offers: &Offers,
        (id, token): (&OfferId, &str),
        mut source: Source,
        budget: u64,
    ) -> anyhow::Result<Summary> {
        let progress = TransferProgress::new(source.total);
        let (mut offered, mut chunk) = (0, 0);
        loop {
            match source.parts.recv().await.context("the reading thread has ended")? {
                Part::Bytes(buffer) => {
                    offered += buffer.len() as u64;
                    // Nothing makes room, as all of the file is on offer at once.
                    self.fits(offered, budget)?;
                    let id: OfferId = chunk_id(id, token, chunk).parse()?;
                    offers.offer(id, Frame::new(buffer)).await.map_err(|error| self.not_offered(error))?;
                    chunk += 1;
                    progress.at(offered);
                }
                Part::End(summary) => return Ok(summary),
                Part::Failed(fault) => return Err(fault.error),
            }
        }
    }

    /// Returns the name of the file, for messages.
    fn what(&self) -> Cow<'_, str> {
        if self.source.as_os_str() == "-" { "standard input".into() } else { self.source.to_string_lossy() }
    }

    /// Checks that so many bytes of the file can be on offer at once.
    fn fits(&self, bytes: u64, budget: u64) -> anyhow::Result<()> {
        ensure!(
            bytes <= budget,
            "{} has {bytes} bytes or more, and at most {budget} can be on offer: raise --memory, or offer it in parts",
            self.what()
        );
        Ok(())
    }

    fn not_offered(&self, error: OfferError) -> anyhow::Error {
        match error {
            OfferError::TooMany { most } => anyhow!(
                "{} makes more than {most} frames of {} bytes: raise --frame-size",
                self.what(),
                self.frame_size
            ),
            error => error.into(),
        }
    }

    /// Waits until a peer has acknowledged the file.
    async fn taken(&self, offer: &Offer) -> anyhow::Result<()> {
        let begin = Instant::now();
        match timeout(Duration::from_secs(self.wait), offer.taken()).await {
            Ok(taken) => taken?,
            Err(_) => bail!(
                "no multinet get has had all of {} within {} s: it is no longer on offer; raise --wait",
                self.what(),
                self.wait
            ),
        }
        say(&format!("received after {:.1} s", begin.elapsed().as_secs_f64()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        put: PutArgs,
    }

    fn id(line: &[&str]) -> Result<String, String> {
        let line = Line::try_parse_from([&["put"], line].concat()).map_err(|error| error.to_string())?;
        line.put.id().map(|id| id.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn an_id_is_chosen_or_random() {
        assert_eq!(id(&["--id", "frame-17", "-"]).as_deref(), Ok("frame-17"));
        assert_eq!(id(&["--id", "cam/17", "-"]).as_deref(), Ok("cam/17"));
        let [one, other] = [id(&["-"]).unwrap(), id(&["-"]).unwrap()];
        assert!(one.len() == 32 && one != other, "{one} {other}");
        assert_eq!(id(&["--id", &"x".repeat(230), "-"]).unwrap().len(), 230);
    }

    #[test]
    fn a_command_line_that_cannot_succeed_is_refused() {
        let long = "x".repeat(231);
        let cases: [(&[&str], &str); 4] = [
            (&["--id", &long, "a.bin"], "is too long: 230 bytes are the most"),
            (&["--id", "a b", "-"], "invalid value 'a b' for '--id <ID>'"),
            (
                &["infer.vision", "a.bin"],
                "\"a.bin\" is one argument too many: multinet put takes a file alone",
            ),
            (&[], "<FILE>"),
        ];
        for (line, expected) in cases {
            let error = id(line).unwrap_err();
            assert!(error.contains(expected), "{line:?}: {error}");
        }
    }

    #[test]
    fn a_file_larger_than_the_memory_is_refused_with_the_flag() {
        let Line { put } = Line::try_parse_from(["put", "a.bin"]).unwrap();
        put.fits(1000, 1000).unwrap();
        let error = put.fits(1001, 1000).unwrap_err().to_string();
        assert!(error.starts_with("a.bin has 1001 bytes") && error.contains("raise --memory"), "{error}");
    }
}
