; ModuleID = "strips_f32_avx2"
target triple = "unknown-unknown-unknown"

define internal void @zero(ptr %a0, i64 %a1) noinline nounwind {
entry:
  br label %body
body:
  %v1 = icmp slt i64 0, %a1
  br i1 %v1, label %loop, label %done
loop:
  %v2 = phi i64 [0, %body], [%v4, %loop]
  %v3 = getelementptr float, ptr %a0, i64 %v2
  store <8 x float> zeroinitializer, ptr %v3, align 4
  %v4 = add nsw i64 %v2, 8
  %v5 = icmp slt i64 %v4, %a1
  br i1 %v5, label %loop, label %done
done:
  ret void
}

define internal void @copy(ptr noalias %a0, ptr noalias %a1, i64 %a2) noinline nounwind {
entry:
  br label %body
body:
  %v1 = and i64 %a2, -8
  %v2 = icmp slt i64 0, %v1
  br i1 %v2, label %loop, label %done
loop:
  %v3 = phi i64 [0, %body], [%v7, %loop]
  %v4 = getelementptr float, ptr %a1, i64 %v3
  %v5 = load <8 x float>, ptr %v4, align 4
  %v6 = getelementptr float, ptr %a0, i64 %v3
  store <8 x float> %v5, ptr %v6, align 4
  %v7 = add nsw i64 %v3, 8
  %v8 = icmp slt i64 %v7, %v1
  br i1 %v8, label %loop, label %done
done:
  %v9 = and i64 %a2, -4
  %v10 = and i64 %a2, 4
  %v11 = icmp ne i64 %v10, 0
  br i1 %v11, label %then, label %after
then:
  %v12 = getelementptr float, ptr %a1, i64 %v1
  %v13 = load <4 x float>, ptr %v12, align 4
  %v14 = getelementptr float, ptr %a0, i64 %v1
  store <4 x float> %v13, ptr %v14, align 4
  br label %after
after:
  %v15 = icmp slt i64 %v9, %a2
  br i1 %v15, label %loop.2, label %done.2
loop.2:
  %v16 = phi i64 [%v9, %after], [%v20, %loop.2]
  %v17 = getelementptr float, ptr %a1, i64 %v16
  %v18 = load float, ptr %v17, align 4
  %v19 = getelementptr float, ptr %a0, i64 %v16
  store float %v18, ptr %v19, align 4
  %v20 = add nsw i64 %v16, 1
  %v21 = icmp slt i64 %v20, %a2
  br i1 %v21, label %loop.2, label %done.2
done.2:
  ret void
}
