//! Container images built from files on this machine, without a registry.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::json;
use tempfile::TempDir;

use crate::process::{image_binary, run};
use crate::tools::tool;

/// Image of every pod's sandbox.
pub const PAUSE: &str = "local/pause:1";

/// Image with a shell, `httpd`, `nc` and the like, for users' pods.
pub const BUSYBOX: &str = "local/busybox:1";

/// Image in place of Numaflow's own, whose containers do nothing.
pub const NUMAFLOW: &str = "local/numaflow:1";

/// Image of CoreDNS.
pub const COREDNS: &str = "local/coredns:1";

/// User of an image with one program, as in our Dockerfile.
const UNPRIVILEGED: &str = "65532:65532";

/// Builds the archives of all images that a node needs, in the format of `docker save`.
pub fn all(folder: &Path) -> Result<Vec<PathBuf>> {
    // The tag is the one in deploy/kustomize/base.
    let ours = |name: &str| format!("{name}:{}", env!("CARGO_PKG_VERSION"));
    // Images have release builds, also in tests of debug builds.
    let dns = image_binary("multinet-dns")?;
    let controller = image_binary("multinet-controller")?;
    Ok(vec![
        busybox(PAUSE, &["/bin/sleep", "2147483647"])?.save(folder)?,
        busybox(BUSYBOX, &["/bin/sh"])?.save(folder)?,
        numaflow()?.save(folder)?,
        program(COREDNS, "coredns", &tool("coredns")?)?.save(folder)?,
        program(&ours("multinet-dns"), "multinet-dns", &dns)?.save(folder)?,
        program(&ours("multinet-controller"), "multinet-controller", &controller)?.save(folder)?,
    ])
}

/// Image under construction.
struct Image {
    tag: String,
    user: &'static str,
    entrypoint: Vec<String>,
    root: TempDir,
}

/// Builds an image of busybox with all its commands.
fn busybox(tag: &str, entrypoint: &[&str]) -> Result<Image> {
    let image = Image::new(tag, "0:0", entrypoint)?;
    let busybox = Path::new("/bin/busybox");
    image.add(busybox, Path::new("/bin/busybox"))?;
    for command in run(Command::new(busybox).arg("--list"))?.lines().filter(|&name| name != "busybox") {
        symlink("/bin/busybox", image.root.path().join("bin").join(command))?;
    }
    for folder in ["tmp", "etc", "www"] {
        fs::create_dir(image.root.path().join(folder))?;
    }
    Ok(image)
}

/// Builds the stub of Numaflow's image. Its init container, which would check the buffers, ends at
/// once, and all others go on for ever.
fn numaflow() -> Result<Image> {
    const PROGRAM: &str = "/bin/numaflow-rs";
    let image = busybox(NUMAFLOW, &[PROGRAM])?;
    let script = image.root.path().join("script");
    fs::write(&script, "#!/bin/sh\n[ \"$1\" = isbsvc-validate ] || exec sleep 2147483647\n")?;
    image.add(&script, Path::new(PROGRAM))?;
    Ok(image)
}

/// Builds an image of one static program, `/name`, without symbols.
fn program(tag: &str, name: &str, file: &Path) -> Result<Image> {
    let entrypoint = format!("/{name}");
    let image = Image::new(tag, UNPRIVILEGED, &[&entrypoint])?;
    let copy = image.add(file, Path::new(&entrypoint))?;
    run(Command::new("strip").arg("--strip-all").arg(copy))?;
    Ok(image)
}

impl Image {
    fn new(tag: &str, user: &'static str, entrypoint: &[&str]) -> Result<Self> {
        let entrypoint = entrypoint.iter().map(|&word| word.to_owned()).collect();
        let root = TempDir::new()?;
        // A temporary folder is accessible to its owner only, unlike the root folder of a
        // container.
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755))?;
        Ok(Self { tag: tag.to_owned(), user, entrypoint, root })
    }

    /// Copies a file to `place` in the image. Returns the path of the copy.
    fn add(&self, file: &Path, place: &Path) -> Result<PathBuf> {
        let copy = self.root.path().join(place.strip_prefix("/")?);
        fs::create_dir_all(copy.parent().context("a file has a folder")?)?;
        fs::copy(file, &copy).with_context(|| format!("cannot copy {}", file.display()))?;
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
        Ok(copy)
    }

    /// Writes the image to an archive.
    fn save(self, folder: &Path) -> Result<PathBuf> {
        let parts = TempDir::new()?;
        let layer = parts.path().join("layer.tar");
        pack(self.root.path(), &[".".as_ref()], &layer)?;
        let digest = run(Command::new("sha256sum").arg(&layer))?;
        let digest = digest.split(' ').next().context("no digest")?;
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "config": {"User": self.user, "Entrypoint": self.entrypoint, "WorkingDir": "/", "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
        });
        let manifest = json!([{"Config": "config.json", "RepoTags": [self.tag], "Layers": ["layer.tar"]}]);
        fs::write(parts.path().join("config.json"), config.to_string())?;
        fs::write(parts.path().join("manifest.json"), manifest.to_string())?;
        let archive = folder.join(format!("{}.tar", self.tag.replace(['/', ':'], "-")));
        let members = ["manifest.json", "config.json", "layer.tar"].map(Path::new);
        pack(parts.path(), &members, &archive)?;
        Ok(archive)
    }
}

/// Returns the name of this machine's architecture in images.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Packs members of a folder into an archive, owned by root.
fn pack(folder: &Path, members: &[&Path], archive: &Path) -> Result<()> {
    let mut command = Command::new("tar");
    command.args(["--create", "--owner=0", "--group=0", "--numeric-owner", "--file"]).arg(archive);
    run(command.arg("--directory").arg(folder).args(members))?;
    Ok(())
}
