use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use multinet_crds::NetworkReference;

use super::*;
use crate::fixtures::{pipeline, settings};
use crate::plan::End;
use crate::service::MANAGED_BY;

const EDGE: &str = r#"[{"from": "decode", "to": "infer", "networks": ["rdma-a"]}]"#;

/// Returns the namespace vision with the Pipeline frames and its three Vertices, without plan.
fn namespace(edges: &str) -> Namespace {
    let known = KnownPipeline { uid: "p".to_owned(), declared: Declared::of(&pipeline(edges)) };
    let vertex = |name: &str| KnownVertex {
        uid: format!("uid-{name}"),
        version: "7".to_owned(),
        pipeline: "frames".to_owned(),
        vertex: name.to_owned(),
        is_reset: false,
        stamp: None,
    };
    Namespace {
        pipelines: [("frames".to_owned(), known)].into(),
        vertices: ["in", "decode", "infer"].map(|name| (format!("frames-{name}"), vertex(name))).into(),
        ..Namespace::default()
    }
}

fn decide(namespace: &Namespace) -> Decision {
    namespace.clone().decide("vision", &namespace.plan("vision", &settings()), &settings(), Instant::now())
}

/// Carries out a decision, as the API server, Numaflow and the webhook do.
fn carry_out(namespace: &mut Namespace, decision: Decision) {
    let plan = namespace.plan("vision", &settings());
    for write in decision.writes {
        match write {
            Write::Create(service) | Write::Replace(service) => {
                namespace.services.insert(service.metadata.name.clone().unwrap(), *service);
            }
            Write::Delete { name, .. } => drop(namespace.services.remove(&name)),
            Write::Reset { name, wanted } => {
                let vertex = namespace.vertices.get_mut(&name).unwrap();
                vertex.stamp = plan.ends.get(&vertex.end()).map(|end: &End| end.stamp(&settings()));
                assert_eq!(vertex.stamp, wanted);
            }
        }
    }
}

/// Returns the namespace after all that it needs was written, with nothing left to do.
fn settled(edges: &str) -> Namespace {
    let mut namespace = namespace(edges);
    let decision = decide(&namespace);
    carry_out(&mut namespace, decision);
    assert_eq!(decide(&namespace), Decision::default());
    namespace
}

#[test]
fn an_edge_gets_services_and_resets_and_then_nothing_more() {
    let mut namespace = namespace(EDGE);
    let decision = decide(&namespace);
    let created: Vec<_> = decision
        .writes
        .iter()
        .filter_map(|write| if let Write::Create(it) = write { Some(it) } else { None })
        .collect();
    assert_eq!((created.len(), decision.writes.len()), (2, 4), "the vertex `in` is at no edge");
    let service =
        created.iter().find(|service| service.metadata.name.as_deref() == Some("frames-infer")).unwrap();
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let (pipeline, vertex) =
        (label(crate::objects::PIPELINE_NAME, "frames"), label(crate::objects::VERTEX_NAME, "infer"));
    assert_eq!(
        service.metadata.labels,
        Some([pipeline.clone(), vertex.clone(), label(MANAGED_BY, "multinet-numaflow")].into())
    );
    let selector = service.spec.selector.clone().unwrap().match_labels;
    assert_eq!(selector, Some([pipeline, vertex, label("app.kubernetes.io/component", "vertex")].into()));
    let owner = OwnerReference {
        api_version: "numaflow.numaproj.io/v1alpha1".to_owned(),
        kind: "Vertex".to_owned(),
        name: "frames-infer".to_owned(),
        uid: "uid-infer".to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(false),
    };
    assert_eq!(service.metadata.owner_references, Some(vec![owner]));
    multinet_crds::validate::validate(&***service).unwrap();

    carry_out(&mut namespace, decision);
    assert_eq!(decide(&namespace), Decision::default());
}

#[test]
fn a_changed_edge_concerns_its_vertices_only_and_a_removed_one_leaves_nothing() {
    let mut namespace = settled(EDGE);
    let change = |namespace: &mut Namespace, edges: &str| {
        namespace.pipelines.get_mut("frames").unwrap().declared = Declared::of(&pipeline(edges));
        let decision = decide(namespace);
        let mut writes: Vec<&str> = decision
            .writes
            .iter()
            .map(|write| match write {
                Write::Create(_) => "create",
                Write::Replace(_) => "replace",
                Write::Delete { .. } => "delete",
                Write::Reset { .. } => "reset",
            })
            .collect();
        writes.sort_unstable();
        let writes = writes.join(" ");
        carry_out(namespace, decision);
        assert_eq!(decide(namespace), Decision::default());
        writes
    };
    assert_eq!(change(&mut namespace, &EDGE.replace("rdma-a", "rdma-b")), "replace replace reset reset");
    let other = EDGE.replace("rdma-a", "rdma-b").replace(r#""to": "infer""#, r#""to": "decode""#);
    assert_eq!(change(&mut namespace, &other), "delete reset reset");
    assert_eq!(change(&mut namespace, ""), "delete reset");
    assert!(namespace.services.is_empty() && namespace.vertices.values().all(|it| it.stamp.is_none()));
}

#[test]
fn pipelines_without_edges_cause_no_write_and_no_event() {
    assert_eq!(decide(&namespace("")), Decision::default());
    assert_eq!(decide(&namespace("[]")), Decision::default());
}

#[test]
fn a_service_of_another_writer_is_left_alone_and_reported() {
    let mut namespace = settled(EDGE);
    let service = namespace.services.get_mut("frames-infer").unwrap();
    service.metadata.labels.as_mut().unwrap().remove(MANAGED_BY);
    service.spec.networks[0].name = "mine".to_owned();
    let decision = decide(&namespace);
    assert!(decision.writes.is_empty(), "{decision:?}");
    let notice = decision.notices.first().unwrap();
    assert_eq!((notice.pipeline.as_str(), notice.reason), ("frames", "NameTaken"));
    assert!(notice.note.contains("frames-infer"), "{notice:?}");
    // Also when its edge is gone.
    namespace.pipelines.get_mut("frames").unwrap().declared = Declared::of(&pipeline(""));
    let decision = decide(&namespace);
    assert!(
        !decision
            .writes
            .iter()
            .any(|write| matches!(write, Write::Delete { name, .. } if name == "frames-infer"))
    );
}

#[test]
fn a_service_keeps_labels_of_others_and_is_replaced_with_its_owner() {
    let mut namespace = settled(EDGE);
    let service = namespace.services.get_mut("frames-infer").unwrap();
    service.metadata.labels.as_mut().unwrap().insert("cost".to_owned(), "7".to_owned());
    assert_eq!(decide(&namespace), Decision::default());
    namespace.vertices.get_mut("frames-infer").unwrap().uid = "new".to_owned();
    assert!(matches!(&decide(&namespace).writes[..], [Write::Delete { name, .. }] if name == "frames-infer"));
}

#[test]
fn vertices_that_wait_or_whose_pipeline_is_gone_are_not_reset() {
    let mut namespace = settled(EDGE);
    for vertex in namespace.vertices.values_mut() {
        (vertex.stamp, vertex.is_reset) = (None, true);
    }
    assert_eq!(decide(&namespace), Decision::default());
    for vertex in namespace.vertices.values_mut() {
        (vertex.stamp, vertex.is_reset) = (Some("old".to_owned()), false);
    }
    namespace.pipelines.clear();
    assert!(!decide(&namespace).writes.iter().any(|write| matches!(write, Write::Reset { .. })));
}

#[test]
fn two_vertices_of_one_name_do_not_share_a_service() {
    // a-b of the Pipeline c, and a of b-c: Numaflow can have one of them only.
    let mut namespace = namespace(EDGE);
    namespace.vertices.get_mut("frames-infer").unwrap().pipeline = "other".to_owned();
    let decision = decide(&namespace);
    assert!(decision.writes.iter().all(|write| !matches!(write, Write::Create(service) if service.metadata.name.as_deref() == Some("frames-infer"))));
}

#[test]
fn a_mono_vertex_gets_a_service_only() {
    let mut namespace = namespace(r#"[{"from": "decode", "toMonoVertex": "mono", "networks": ["a"]}]"#);
    assert!(!namespace.plan("vision", &settings()).ends.is_empty());
    namespace.mono_vertices.insert("mono".to_owned(), "uid-mono".to_owned());
    let decision = decide(&namespace);
    let service = decision.writes.iter().find_map(|write| match write {
        Write::Create(service) if service.metadata.name.as_deref() == Some("mono") => Some(service),
        _ => None,
    });
    let selector = service.unwrap().spec.selector.clone().unwrap().match_labels.unwrap();
    assert_eq!(selector["numaflow.numaproj.io/mono-vertex-name"], "mono");
    assert_eq!(selector["app.kubernetes.io/component"], "mono-vertex");
    assert_eq!(decision.writes.len(), 3);
}

#[test]
fn problems_are_reported_one_by_one_up_to_a_limit() {
    let decision = decide(&namespace(&format!("[{}]", vec!["7"; 20].join(","))));
    assert_eq!(decision.notices.len(), 9, "{:?}", decision.notices);
    assert!(decision.notices.iter().any(|notice| notice.note == "12 more problems with direct edges"));
    assert!(decision.notices.iter().all(|notice| notice.reason == "DirectEdgeInvalid"));
}

#[test]
fn a_vertex_whose_stamp_was_edited_by_hand_is_reset() {
    let mut namespace = settled(EDGE);
    namespace.vertices.get_mut("frames-infer").unwrap().stamp = Some("mine".to_owned());
    namespace.vertices.get_mut("frames-in").unwrap().stamp = Some("mine".to_owned());
    let resets = |write: &Write| match write {
        Write::Reset { name, wanted } => (name.clone(), wanted.is_some()),
        other => panic!("{other:?}"),
    };
    let decision = decide(&namespace);
    let resets: Vec<_> = decision.writes.iter().map(resets).collect();
    assert_eq!(resets, [("frames-in".to_owned(), false), ("frames-infer".to_owned(), true)]);
}

#[test]
fn a_mono_vertex_of_a_vertex_name_is_reported_and_the_vertex_keeps_the_service() {
    let to_mono = r#"{"from": "decode", "toMonoVertex": "frames-infer", "networks": ["rdma-a"]}"#;
    let mut namespace = namespace(&EDGE.replace("}]", &format!("}}, {to_mono}]")));
    namespace.mono_vertices.insert("frames-infer".to_owned(), "uid-mono".to_owned());
    let decision = decide(&namespace);
    let notice = decision.notices.first().unwrap();
    assert_eq!((decision.notices.len(), notice.reason), (1, "NameTaken"));
    assert!(notice.note.contains("MonoVertex frames-infer"), "{notice:?}");
    let mut created = decision.writes.iter().filter_map(|write| match write {
        Write::Create(service) if service.metadata.name.as_deref() == Some("frames-infer") => owner(service),
        _ => None,
    });
    assert_eq!((created.next(), created.next()), (Some("uid-infer"), None));
}

#[test]
fn names_of_maximal_length_make_valid_services() {
    // Numaflow makes a service PIPELINE-VERTEX-headless, whose name has at most 63 bytes.
    let (pipeline, vertex) = ("p".repeat(27), "v".repeat(26));
    assert_eq!(format!("{pipeline}-{vertex}-headless").len(), 63);
    for name in [EndName::Vertex { pipeline, vertex }, EndName::MonoVertex("m".repeat(63))] {
        let end = End {
            networks: vec![NetworkReference { name: "n".repeat(63), ..Default::default() }],
            ..End::default()
        };
        let service = owned_service(&"x".repeat(63), &name, &end, "uid");
        multinet_crds::validate::validate(&service).unwrap();
    }
}

#[test]
fn refused_services_are_one_event_of_each_edge_and_hold_up_no_other() {
    let mono = r#"{"from": "decode", "toMonoVertex": "mono", "networks": ["rdma-a"]}"#;
    let mut namespace = namespace(&EDGE.replace("}]", &format!("}}, {mono}]")));
    namespace.mono_vertices.insert("mono".to_owned(), "uid-mono".to_owned());
    let start = Instant::now();
    let turn = |namespace: &mut Namespace, seconds: u64| {
        let plan = namespace.plan("vision", &settings());
        namespace.decide("vision", &plan, &settings(), start + Duration::from_secs(seconds))
    };
    let created = |decision: &Decision| -> BTreeMap<String, MultiNetworkService> {
        let created = decision.writes.iter().filter_map(|write| match write {
            Write::Create(service) => Some((service.metadata.name.clone()?, (**service).clone())),
            _ => None,
        });
        created.collect()
    };
    let refuse = |namespace: &mut Namespace, service: &MultiNetworkService, seconds: u64| {
        let name = service.metadata.name.clone().unwrap();
        let now = start + Duration::from_secs(seconds);
        let refusal = Refusal::new(namespace.refusals.get(&name), service, "exceeded quota: few", now);
        namespace.refusals.insert(name, refusal);
    };
    let wanted = created(&turn(&mut namespace, 0));
    for name in ["frames-decode", "frames-infer"] {
        refuse(&mut namespace, &wanted[name], 0);
    }
    let decision = turn(&mut namespace, 0);
    assert_eq!(created(&decision).keys().collect::<Vec<_>>(), ["mono"]);
    let notes = |decision: &Decision| -> Vec<String> {
        decision
            .notices
            .iter()
            .map(|notice| notice.note.replace("; correct", "\n").lines().next().unwrap().to_owned())
            .collect()
    };
    let refused = |edges: &str, name: &str| {
        vec![format!("{edges}: the API server refuses the MultiNetworkService {name}")]
    };
    assert_eq!(notes(&decision), refused("direct-edges[0], direct-edges[1]", "frames-decode"));

    // The sender's service is accepted. The message about the other one stays the same meanwhile.
    namespace.services.insert("frames-decode".to_owned(), wanted["frames-decode"].clone());
    for seconds in [1, 4, 5] {
        let decision = turn(&mut namespace, seconds);
        assert_eq!(notes(&decision), refused("direct-edges[0]", "frames-infer"));
        assert_eq!(created(&decision).contains_key("frames-infer"), seconds == 5);
        assert_eq!(decision.retry, (seconds < 5).then_some(start + Duration::from_secs(5)));
    }
    refuse(&mut namespace, &wanted["frames-infer"], 5);
    assert_eq!(turn(&mut namespace, 5).retry, Some(start + Duration::from_secs(15)));

    // Another edge is another attempt.
    namespace.pipelines.get_mut("frames").unwrap().declared =
        Declared::of(&pipeline(&EDGE.replace("-a", "-b")));
    let decision = turn(&mut namespace, 6);
    assert!(created(&decision).contains_key("frames-infer") && decision.notices.is_empty());
    assert!(namespace.refusals.is_empty() && decision.retry.is_none());
}
