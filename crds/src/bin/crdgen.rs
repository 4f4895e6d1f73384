//! Prints the CustomResourceDefinitions as YAML documents: `crdgen | kubectl apply -f -`.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io::Write as _;

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    for (_, manifest) in multinet_crds::crd_manifests()? {
        out.write_all(manifest.as_bytes())?;
    }
    Ok(())
}
