; ModuleID = "strips_f32_avx2"
target triple = "unknown-unknown-unknown"
target datalayout = ""

define internal void @"zero"(ptr %".1", i64 %".2") noinline nounwind
{
entry:
  br label %"body"
body:
  %".4" = icmp slt i64 0, %".2"
  br i1 %".4", label %"loop", label %"done"
loop:
  %".6" = phi  i64 [0, %"body"], [%".9", %"loop"]
  %".7" = getelementptr float, ptr %".1", i64 %".6"
  store <8 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>, ptr %".7", align 4
  %".9" = add nsw i64 %".6", 8
  %".10" = icmp slt i64 %".9", %".2"
  br i1 %".10", label %"loop", label %"done"
done:
  ret void
}

define internal void @"copy"(ptr noalias %".1", ptr noalias %".2", i64 %".3") noinline nounwind
{
entry:
  br label %"body"
body:
  %".5" = and i64 %".3", 7
  %".6" = sub nsw i64 %".3", %".5"
  %".7" = icmp slt i64 0, %".6"
  br i1 %".7", label %"loop", label %"done"
loop:
  %".9" = phi  i64 [0, %"body"], [%".14", %"loop"]
  %".10" = getelementptr float, ptr %".2", i64 %".9"
  %".11" = load <8 x float>, ptr %".10", align 4
  %".12" = getelementptr float, ptr %".1", i64 %".9"
  store <8 x float> %".11", ptr %".12", align 4
  %".14" = add nsw i64 %".9", 8
  %".15" = icmp slt i64 %".14", %".6"
  br i1 %".15", label %"loop", label %"done"
done:
  %".17" = icmp slt i64 %".6", %".3"
  br i1 %".17", label %"loop.1", label %"done.1"
loop.1:
  %".19" = phi  i64 [%".6", %"done"], [%".24", %"loop.1"]
  %".20" = getelementptr float, ptr %".2", i64 %".19"
  %".21" = load float, ptr %".20", align 4
  %".22" = getelementptr float, ptr %".1", i64 %".19"
  store float %".21", ptr %".22", align 4
  %".24" = add nsw i64 %".19", 1
  %".25" = icmp slt i64 %".24", %".3"
  br i1 %".25", label %"loop.1", label %"done.1"
done.1:
  ret void
}
