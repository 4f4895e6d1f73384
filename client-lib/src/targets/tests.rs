//! Texts of the variables.

use super::*;

const INFER: &str = "infer.frames.vision.vertexdomain.local.:18515";

#[test]
fn targets_sources_and_network_are_as_multinet_numaflow_writes_them() {
    let two = format!("{INFER},store.vision.svc.multinet.cluster.local.:18516");
    let parsed = Targets::parse(&two, INFER, "rail0").unwrap();
    let texts: Vec<String> = parsed.targets().iter().map(Target::to_string).collect();
    assert_eq!(texts.join(","), two);
    assert_eq!((parsed.source().unwrap().port(), parsed.network()), (18515, Some("rail0")));
    assert_eq!(Targets::parse("", "", ""), Ok(Targets::default()));
    let without_dot = Targets::parse("infer.vision:1", "", "").unwrap();
    assert_eq!(without_dot.target().unwrap().name(), "infer.vision");
}

#[test]
fn other_texts_are_errors_that_name_the_variable_and_the_rule() {
    let long = format!("{}:1", "x".repeat(64));
    let lists = [
        ("infer.vision.", "it has no port"),
        (" infer.vision:1", "only letters, digits, '-', '_' and '.' may stand in it, and no port"),
        (":1", "it is empty, or has two dots in a row"),
        (".:1", "it is empty, or has two dots in a row"),
        ("infer.vision..:1", "it is empty, or has two dots in a row"),
        (&long, "a part between two dots is longer than 63 characters"),
        ("infer.vision:0", "ports are numbers from 1 to 65535"),
        ("infer.vision:65536", "ports are numbers from 1 to 65535"),
        ("infer.vision:+1", "ports are numbers from 1 to 65535"),
        ("infer.vision:01", "ports are numbers from 1 to 65535"),
        ("infer.vision:rdma", "ports are numbers from 1 to 65535"),
        ("[fd00::1]:1", "only letters, digits, '-', '_' and '.' may stand in it, and no port"),
        ("infer.vision:1,", "it has no port"),
        (",infer.vision:1", "it has no port"),
    ];
    for (text, reason) in lists {
        for (variable, outcome) in
            [(TARGETS, Targets::parse(text, "", "")), (SOURCES, Targets::parse("", text, ""))]
        {
            let message = outcome.unwrap_err().to_string();
            assert!(message.starts_with(&format!("{variable}: ")), "{text}: {message}");
            assert!(message.ends_with(reason), "{text}: {message}");
        }
    }
    let twice = Targets::parse(&format!("{INFER},{INFER}"), "", "").unwrap_err();
    assert_eq!(twice.to_string(), format!("MULTINET_TARGETS has {INFER} twice: name each vertex once"));
    for alias in ["rail.0", "rail 0", &"r".repeat(64)] {
        let message = Targets::parse("", "", alias).unwrap_err().to_string();
        assert!(message.starts_with("MULTINET_NETWORK: "), "{message}");
    }
}

#[test]
fn one_vertex_is_found_only_if_there_is_one() {
    let none = Targets::default().source().unwrap_err().to_string();
    assert!(none.starts_with("MULTINET_SOURCES is not set: give the Pipeline the annotation"), "{none}");
    let two = Targets::parse("a.b:1,c.d:1", "", "").unwrap();
    let several = "MULTINET_TARGETS has 2 vertices, and this program takes one: name one only";
    assert_eq!(two.target().unwrap_err().to_string(), several);
}
