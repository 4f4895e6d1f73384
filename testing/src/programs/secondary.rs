//! Real secondary DNS servers, Knot and NSD, with the zones of a primary on loopback.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::dns::{Query, Transport};
use crate::process::{Process, free_port, remove_at_exit, run};
use crate::wait::block_on;

/// Time limit for a secondary to start, and to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// TSIG key for HMAC-SHA256.
#[derive(Debug, Clone, Copy)]
pub struct TsigKey {
    /// Name of the key.
    pub name: &'static str,
    /// Secret in base64.
    pub secret: &'static str,
}

impl TsigKey {
    /// Returns the key as a statement in BIND's format.
    pub fn statement(&self) -> String {
        format!("key \"{}\" {{\n\talgorithm hmac-sha256;\n\tsecret \"{}\";\n}};\n", self.name, self.secret)
    }

    /// Returns the key in the format of the option `-y` of dig and kdig.
    pub fn option(&self) -> String {
        format!("hmac-sha256:{}:{}", self.name, self.secret)
    }
}

/// Program of the secondary, and how the primary authenticates it.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// Knot, which signs its requests with a key.
    Knot(TsigKey),
    /// NSD, which the primary knows by its address, 127.0.0.2.
    Nsd,
}

/// Secondary on loopback, running or not.
#[derive(Debug)]
pub struct Secondary {
    kind: Kind,
    port: u16,
    folder: TempDir,
    process: Option<Process>,
}

impl Secondary {
    /// Creates a secondary for these zones of the primary on port `primary` of 127.0.0.1. Does not
    /// start it.
    pub fn new(kind: Kind, primary: u16, zones: &[&str]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        remove_at_exit(folder.path())?;
        let port = free_port()?;
        let config = match kind {
            Kind::Knot(key) => knot(folder.path(), port, primary, key, zones),
            Kind::Nsd => nsd(folder.path(), port, primary, zones),
        };
        let secondary = Self { kind, port, folder, process: None };
        fs::write(secondary.config(), config)?;
        Ok(secondary)
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("conf")
    }

    /// Returns its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Starts it, with the zones that it had when it was stopped.
    pub fn start(&mut self) -> Result<()> {
        let mut command = match self.kind {
            Kind::Knot(_) => Command::new("knotd"),
            Kind::Nsd => Command::new("nsd"),
        };
        command.arg("-c").arg(self.config());
        if matches!(self.kind, Kind::Nsd) {
            command.arg("-d"); // stays in the foreground
        }
        command.env("PATH", format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default()));
        self.process = Some(Process::spawn(&mut command, &self.folder.path().join("output"))?);
        Ok(())
    }

    /// Stops it gracefully.
    pub fn stop(&mut self) -> Result<()> {
        let Some(mut process) = self.process.take() else { return Ok(()) };
        process.signal("TERM")?;
        block_on(process.exited(PATIENCE)).map(drop)
    }

    /// Makes it check with the primary whether a zone has changed.
    pub fn refresh(&self, apex: &str) -> Result<()> {
        if let Kind::Nsd = self.kind {
            let notify = Query::new(apex, "SOA").flags(0).opcode(4);
            Transport::Udp.ask((Ipv4Addr::LOCALHOST, self.port).into(), &notify)?;
            return Ok(());
        }
        let socket = self.folder.path().join("knot.sock");
        run(Command::new("knotc").arg("-s").arg(socket).args(["zone-refresh", apex])).map(drop)
    }

    /// Returns its log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Returns a zone as it serves it.
    pub fn zone(&mut self, apex: &str) -> Result<Zone> {
        if let Some(process) = &mut self.process {
            process.check_running()?;
        }
        Zone::fetch(self.port, apex, None)
    }
}

fn knot(folder: &Path, port: u16, primary: u16, key: TsigKey, zones: &[&str]) -> String {
    let folder = folder.display();
    let TsigKey { name, secret } = key;
    let mut config = format!(
        "server:\n  rundir: {folder}\n  listen: 127.0.0.1@{port}\n  udp-workers: 1\n  tcp-workers: 1\n  \
         background-workers: 1\nlog:\n- target: {folder}/log\n  any: info\ndatabase:\n  storage: {folder}\n\
         key:\n- id: {name}\n  algorithm: hmac-sha256\n  secret: {secret}\n\
         remote:\n- id: primary\n  address: 127.0.0.1@{primary}\n  via: 127.0.0.1\n  key: {name}\n\
         acl:\n- id: told\n  address: 127.0.0.1\n  key: {name}\n  action: notify\n\
         - id: read\n  address: 127.0.0.1\n  action: transfer\n\
         template:\n- id: default\n  storage: {folder}\n  zonefile-sync: 0\n  master: primary\n  acl: [told, read]\nzone:\n"
    );
    for zone in zones {
        let _ = writeln!(config, "- domain: {zone}"); // a String takes all
    }
    config
}

fn nsd(folder: &Path, port: u16, primary: u16, zones: &[&str]) -> String {
    let folder = folder.display();
    let mut config = format!(
        "server:\n  ip-address: 127.0.0.1@{port}\n  username: \"\"\n  zonesdir: \"{folder}\"\n  database: \"\"\n  \
         zonelistfile: \"{folder}/zones\"\n  xfrdfile: \"{folder}/xfrd\"\n  xfrdir: \"{folder}\"\n  \
         pidfile: \"{folder}/pid\"\n  logfile: \"{folder}/log\"\n  server-count: 1\n  rrl-ratelimit: 0\n  verbosity: 2\n  xfrd-reload-timeout: 0\n\
         remote-control:\n  control-enable: no\n"
    );
    for zone in zones {
        // Writing to a String cannot fail.
        let _ = write!(
            config,
            "zone:\n  name: {zone}\n  zonefile: \"{zone}.zone\"\n  request-xfr: 127.0.0.1@{primary} NOKEY\n  \
             outgoing-interface: 127.0.0.2\n  allow-notify: 127.0.0.1 NOKEY\n  provide-xfr: 127.0.0.1 NOKEY\n"
        );
    }
    config
}

/// Zone as a server serves it.
#[derive(Debug, PartialEq, Eq)]
pub struct Zone {
    /// Serial of the zone.
    pub serial: String,
    /// All records but the SOA, in dig's presentation format.
    pub records: BTreeSet<String>,
}

impl Zone {
    /// Fetches a zone by dig from a port of 127.0.0.1.
    pub fn fetch(port: u16, apex: &str, key: Option<TsigKey>) -> Result<Self> {
        let mut dig = Command::new("dig");
        dig.args([
            "@127.0.0.1",
            "-p",
            &port.to_string(),
            "+noall",
            "+answer",
            "+onesoa",
            "+tries=1",
            "+time=10",
        ]);
        dig.args(key.iter().flat_map(|key| ["-y".to_owned(), key.option()])).args([apex, "AXFR"]);
        let text = run(&mut dig)?;
        ensure!(!text.contains("; Transfer failed"), "{apex} at {port}: {text}");
        ensure!(!text.contains("Couldn't verify"), "{apex} at {port}: a signature is invalid");
        let mut zone = Self { serial: String::new(), records: BTreeSet::new() };
        for line in text.lines().filter(|line| !line.starts_with(';') && !line.is_empty()) {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words.get(3) == Some(&"SOA") {
                zone.serial = words.get(6).map(|&word| word.to_owned()).context("an SOA without serial")?;
            } else {
                ensure!(zone.records.insert(words.join(" ")), "a repeated record: {line}");
            }
        }
        ensure!(!zone.serial.is_empty(), "{apex} at {port}: no SOA record");
        Ok(zone)
    }
}
