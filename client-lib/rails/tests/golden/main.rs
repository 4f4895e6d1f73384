//! Variables for every framework, for pods that are described in `cases/`.
//!
//! A case describes a pod, and has below `---` its rails and the variables. `UPDATE=1` rewrites
//! that part. Its lines describe, in this order of words:
//!
//! ```text
//! interface NAME ADDRESS… [mtu=N] [kind=K] [mac=M] [state]   state: down, no-carrier, tentative
//! port DEVICE NUMBER LINK-LAYER STATE [at=PCI-PATH] [numa=N] [uverbs=N] [unopened]
//! row INDEX GID TYPE INTERFACE      of the port above; RoCE v2 is v2, an unknown interface is -
//! gpu NUMBER PCI-PATH [numa=N]
//! file PATH TEXT                    a file of the container
//! set NAME=VALUE                    a variable that is set
//! use ALIAS                         a rail to use; by default all
//! service OWN-NAME                  the service, which has this pod under that name, or not (-)
//! peer ALIAS ADDRESS                an address of the service
//! ```

#![expect(clippy::unwrap_used, reason = "tests, and the functions that they share")]

mod case;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use multinet_rails::env::{Framework, Plan, Request, Setting};
use multinet_rails::nic::own_addresses;
use multinet_rails::{Pod, Rail, Sources};

use case::Case;

#[test]
fn each_pod_has_the_variables_of_every_framework() {
    let mut wrong = Vec::new();
    let files = files();
    assert!(files.len() >= 15, "{files:?}");
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let (described, expected) = text.split_once("---\n").unwrap();
        let found = variables(&Case::parse(described));
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&file, format!("{described}---\n{found}")).unwrap();
        } else if found != expected {
            wrong.push(format!("{}:\n{}", file.display(), difference(expected, &found)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/cases");
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort_unstable();
    files
}

/// Returns the rails of a pod and the variables of each framework, as text.
fn variables(case: &Case) -> String {
    let root = tempfile::tempdir().unwrap();
    case.write(root.path());
    let mut sources = Sources::default();
    sources.root = root.path().to_owned();
    let pod = Pod::of(&case.interfaces, &own_addresses(&case.interfaces), &sources).unwrap();
    let mut text = String::new();
    pod.rails.iter().for_each(|rail| writeln!(text, "rail {rail}").unwrap());
    pod.unusable.iter().for_each(|reason| writeln!(text, "unusable {reason}").unwrap());
    pod.warnings.iter().for_each(|warning| writeln!(text, "warning {warning}").unwrap());
    let is_used = |rail: &&Rail| {
        case.used.is_empty() || rail.network.as_ref().is_some_and(|its| case.used.contains(its))
    };
    for framework in Framework::ALL {
        let request = Request {
            frameworks: &[framework],
            rails: pod.rails.iter().filter(is_used).collect(),
            pod: &pod,
            service: case.service.as_ref(),
            set: &|name| case.set.get(name).cloned(),
        };
        let plan = Plan::of(&request);
        writeln!(text, "{framework}").unwrap();
        for variable in &plan.variables {
            match &variable.setting {
                Setting::Value(value) => writeln!(text, "    {}={value}", variable.name),
                Setting::Kept(value) => writeln!(text, "    {} stays {value}", variable.name),
                Setting::LeftOut(reason) => writeln!(text, "    {} is left out: {reason}", variable.name),
                other => panic!("{other:?}"),
            }
            .unwrap();
        }
        plan.lost.iter().chain(&plan.remarks).for_each(|remark| writeln!(text, "    # {remark}").unwrap());
    }
    text
}

/// Returns the lines that only one of two texts has.
fn difference(expected: &str, found: &str) -> String {
    let only = |one: &str, other: &str, sign: char| {
        let lines = one.lines().filter(|line| !other.lines().any(|its| its == *line));
        lines.map(|line| format!("  {sign}{line}\n")).collect::<String>()
    };
    only(expected, found, '-') + &only(found, expected, '+')
}
