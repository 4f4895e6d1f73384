//! Third-party programs that `tests/tools` builds.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use crate::process::run;

/// Returns the path of a program, such as `etcd`. The first call builds missing programs, which
/// takes minutes; `make test` builds them beforehand.
pub fn tool(name: &str) -> Result<PathBuf> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| built_by("build.sh").map_err(|error| format!("{error:#}")));
    let path = folder.as_ref().map_err(|error| anyhow!("{error}"))?.join(name);
    if !path.is_file() {
        bail!("tests/tools/build.sh builds no {name}");
    }
    Ok(path)
}

/// Returns the path of Helm, built in the same way as [`tool`]s.
pub fn helm() -> Result<PathBuf> {
    built_by("helm.sh")
}

/// Returns the folder of Numaflow's controller and its definitions, built in the same way as
/// [`tool`]s.
pub fn numaflow() -> Result<PathBuf> {
    built_by("numaflow.sh")
}

/// Returns the files with the CustomResourceDefinitions of other projects that the examples use.
/// The first call downloads them.
pub fn definitions() -> Result<Vec<PathBuf>> {
    let folder = built_by("definitions.sh")?;
    folder.read_dir()?.map(|entry| Ok(entry?.path())).collect()
}

/// Returns the folder of PyTorch, MPI and the other programs of `tests/frameworks`. The first call
/// downloads them, which takes half a minute.
pub fn frameworks() -> Result<PathBuf> {
    built_by("frameworks.sh")
}

/// Runs a script of `tests/tools`, which builds a program. Returns the path that it prints.
fn built_by(script: &str) -> Result<PathBuf> {
    let script = repository().join("tests/tools").join(script);
    Ok(PathBuf::from(run(&mut Command::new(script))?.trim()))
}

/// Returns the root of this repository.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or_else(|| Path::new("."))
}

/// Returns the YAML files of a folder of this repository, sorted.
pub fn files_in(folder: &str) -> Result<Vec<PathBuf>> {
    let entries = repository().join(folder).read_dir().with_context(|| folder.to_owned())?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    files.sort_unstable();
    ensure!(!files.is_empty(), "{folder} holds no YAML file");
    Ok(files)
}
